// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace moonhalo::io {

/// Size and last change of a file, for people too: "20480 bytes, written 2026-11-23 05:30:11.123456789 UTC". A
/// file with the same text has the same contents; another text may only mean that it was written anew. "" for a folder,
/// whose files change without it. RuntimeError where there is nothing.
std::string file_version(const std::string& path);

}  // namespace moonhalo::io
