// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace moonhalo::io {

/// A gzip file with the contents `bytes`. Throws RuntimeError without memory.
std::string gzip(const std::string& bytes);

}  // namespace moonhalo::io
