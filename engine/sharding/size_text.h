// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/ArrayRef.h>

#include <string>

namespace moonhalo {

/// The rows of each rank's block, for messages: "{4, 2, 1}", and of more than 16 ranks "{37 rows on 12 ranks, 38 on
/// 500}", or "{1 to 900 rows on 512 ranks}" for many different sizes. Not collective.
std::string sizes_text(c10::IntArrayRef sizes);

}  // namespace moonhalo
