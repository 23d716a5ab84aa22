// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace moonhalo::io {

// A checkpoint is a folder NAME; it is complete if it contains checkpoint.json. A save leaves a complete folder at any
// time, also if the program is killed:
//
//     1. write NAME.partial, checkpoint.json last
//     2. exchange the names NAME and NAME.partial in one step (else: NAME -> NAME.replaced, NAME.partial -> NAME)
//     3. remove the older folder
//
// load and the next save find the complete folder under any of the three names. `who` begins the messages, which name
// the path (new_file.h).

constexpr const char* kCheckpointFile = "checkpoint.json";

/// True if a folder is a complete checkpoint.
bool is_checkpoint(const std::string& who, const std::string& folder);

/// Returns PATH, PATH.partial or PATH.replaced, whichever is complete and newest; nothing if none is.
std::optional<std::string> find_checkpoint(const std::string& who, const std::string& path);
/// Returns the names of the folders in `folder`, in any order; none if `folder` does not exist.
std::vector<std::string> list_folders(const std::string& who, const std::string& folder);
/// Returns the names of all checkpoints in `folder`, also of those whose save was killed, sorted.
std::vector<std::string> list_checkpoints(const std::string& who, const std::string& folder);

/// Cleans up after a save that was killed: gives a complete folder its name if that is free, removes the others.
void settle_checkpoint(const std::string& who, const std::string& path);
/// Renames PATH.partial, which is complete, to PATH. The older folder keeps another name until settle_checkpoint.
void exchange_checkpoint(const std::string& who, const std::string& path);
/// Does the same and removes the older folder.
void put_checkpoint_in_place(const std::string& who, const std::string& path);
/// Removes a folder, checkpoint.json first, so that a folder that is half removed is not complete.
void discard_checkpoint(const std::string& who, const std::string& folder);

/// For tests: false simulates a file system that cannot exchange two names in one step.
void exchange_checkpoints_in_one_step(bool one_step);

}  // namespace moonhalo::io
