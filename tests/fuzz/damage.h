// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <random>
#include <vector>

#include "tests/fuzz/kinds.h"

namespace moonhalo::testing {

/// Some of a file of `input` changed: bytes and numbers overwritten, ranges cut out, doubled, put in from `others`;
/// where there are `words`, edits of text too. Of an input that is checked, only bytes are overwritten and the end
/// is cut off: a copy of a piece that has its checksum with it is not damage that one could see.
InputFiles damaged(const InputFiles& input, const std::vector<InputFiles>& others,
                   const std::vector<std::string>& words, std::mt19937_64& random);

}  // namespace moonhalo::testing
