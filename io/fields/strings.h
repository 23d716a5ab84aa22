// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "moonhalo/io/fields/domain_file.h"

namespace moonhalo::io {

/// The strings of a selection of a dataset of text, row by row. TypeError for other types.
std::vector<std::string> read_strings(const Selection& source);

}  // namespace moonhalo::io
