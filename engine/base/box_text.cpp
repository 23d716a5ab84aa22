// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/base/box_text.h"

namespace moonhalo {

std::string box_string(const Box& box) {
  std::string text;
  for (const Interval& rows : box)
    text += (text.empty() ? "" : ", ") + std::to_string(rows.begin) + ":" + std::to_string(rows.end);
  return "[" + text + "]";
}

}  // namespace moonhalo
