// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/base/memory.h"

#include <ATen/ATen.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <limits>
#include <new>

#include "moonhalo/engine/base/block_memory.h"
#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo::io {
namespace {

constexpr double kNotWorthAsking = 64 << 20;

std::string in_words(double bytes) {
  const std::array<const char*, 7> units = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < units.size(); ++unit) bytes /= 1024;
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), unit > 0 ? "%.1f %s" : "%.0f %s", bytes, units[unit]);
  return text.data();
}

/// Returns what the system could hand out now: free memory, caches that it can empty, and swap.
double available_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string name, rest;
  double kib = 0, available = 0;
  bool found = false;
  while (file >> name >> kib && std::getline(file, rest)) {
    if (name == "MemAvailable:" || name == "SwapFree:") available += kib * 1024;
    found = found || name == "MemAvailable:";
  }
  if (!found) return std::numeric_limits<double>::infinity();
  double limit = 0;  // of a container
  for (const char* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    if (std::ifstream(path) >> limit) available = std::min(available, limit);
  }
  return available;
}

double bytes_of(at::IntArrayRef shape, double element_size) {
  double bytes = element_size;
  for (const int64_t extent : shape) bytes *= static_cast<double>(extent);
  return bytes;
}

[[noreturn]] void refuse(const h5::Where& where, at::IntArrayRef shape, double bytes, const std::string& have) {
  TORCH_CHECK(
      false, where.to_string(), ": its ", in_words(bytes), " do not fit into memory\n  have  shape ",
      shape_string(shape), ", ", have,
      "\n  fix   read a part of it, or scatter it over more machines; a small file that claims so much may be damaged");
}

}  // namespace

void check_fits_memory(const h5::Where& where, at::IntArrayRef shape, double element_size) {
  const double bytes = bytes_of(shape, element_size);
  if (bytes < kNotWorthAsking) return;
  const double available = available_bytes();
  if (bytes > available) refuse(where, shape, bytes, in_words(available) + " available");
}

void refuse_memory(const h5::Where& where, at::IntArrayRef shape, double element_size) {
  refuse(where, shape, bytes_of(shape, element_size), "an allocation that the system refused");
}

at::Tensor allocate_for(at::IntArrayRef shape, at::ScalarType dtype, const h5::Where& where) {
  const auto element_size = static_cast<double>(c10::elementSize(dtype));
  check_fits_memory(where, shape, element_size);
  try {
    return empty_block(shape, at::TensorOptions(dtype));
  } catch (const c10::Error&) {
    refuse_memory(where, shape, element_size);
  } catch (const std::bad_alloc&) {
    refuse_memory(where, shape, element_size);
  }
}

at::ScalarType moved_as(size_t element_size) {
  switch (element_size) {
    case 1:
      return at::kByte;
    case 2:
      return at::kShort;
    case 4:
      return at::kInt;
    case 8:
      return at::kLong;
    default:
      return at::kComplexDouble;
  }
}

}  // namespace moonhalo::io
