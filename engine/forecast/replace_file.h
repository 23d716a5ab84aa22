// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <system_error>

namespace moonhalo {

/// The name of a file until it is whole. Not collective.
std::string unfinished_name(const std::string& path);

/// Writes a file under its unfinished name, then gives it its own: one that exists is replaced. Returns why it cannot
/// be written: then nothing of it is left. Not collective.
std::error_code replace_file(const std::string& path, const std::string& text);

}  // namespace moonhalo
