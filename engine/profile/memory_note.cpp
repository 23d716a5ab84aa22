// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/profile/memory_note.h"

#include <cstdio>

#include "moonhalo/engine/profile/memory.h"
#include "moonhalo/engine/profile/recorder.h"

namespace moonhalo {

std::string bytes_text(double bytes) {
  constexpr const char* kUnits[] = {" B", " kB", " MB", " GB", " TB"};
  size_t unit = 0;
  for (; bytes >= 999.95 && unit + 1 < std::size(kUnits); ++unit) bytes /= 1000;
  char text[40];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f%s" : "%.1f%s", bytes, kUnits[unit]);
  return text;
}

std::string bytes_text(int64_t bytes) { return bytes_text(static_cast<double>(bytes)); }

std::string memory_note() {
  if (!counts_memory()) return "";
  const MemoryUse use = memory_use();
  std::string text =
      "\n  have  tensors of this rank: " + bytes_text(use.live) + " now, " + bytes_text(use.peak) + " at the peak";
  const Recorder* recorder = Recorder::of_this_rank();
  return recorder == nullptr ? text : text + recorder->memory_by_module();
}

}  // namespace moonhalo
