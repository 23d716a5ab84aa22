// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <ctime>
#include <string>

namespace moonhalo::io {

/// Size and last change of a file, for people too: "20480 bytes, written 2026-11-23 05:30:11.123456789 UTC". A file
/// with the same text has the same contents; another text may only mean that it was written again. Of a Zarr
/// folder: those of the files that describe its arrays, and when chunks were added to or renamed in the folders of
/// the arrays. The same on all hosts that see the file, or a copy that kept its times. RuntimeError where there is
/// nothing.
std::string file_version(const std::string& path);

/// Stands for the file that `path` leads to on this host, for what file_version() looks at and which file it is:
/// another number once it was changed or replaced. Of a Zarr folder: for what reading `dataset` depends on; cheap
/// however many arrays there are. RuntimeError where there is nothing.
uint64_t file_identity(const std::string& path, const std::string& dataset);

/// "2026-11-23 05:30:11.123456789 UTC".
std::string time_text(const timespec& time);

}  // namespace moonhalo::io
