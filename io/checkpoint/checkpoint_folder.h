// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace moonhalo::io {

// A checkpoint is a folder NAME that is complete when checkpoint.json is in it. A save writes NAME.partial,
// checkpoint.json last. Then NAME and NAME.partial exchange their names in one step, and what was NAME before goes.
// Where a file system cannot do that, NAME becomes NAME.replaced, then NAME.partial becomes NAME. So whenever a save is
// killed a complete folder is there, which load and the next save find. Errors name the path, as of new_file.h.

constexpr const char* kCheckpointFile = "checkpoint.json";

/// True if a folder is a complete checkpoint.
bool is_checkpoint(const std::string& who, const std::string& folder);

/// The newest complete one of the folders of `path` that may be there.
std::optional<std::string> find_checkpoint(const std::string& who, const std::string& path);
/// The names of the folders in `folder`, in no order. None where no folder is.
std::vector<std::string> list_folders(const std::string& who, const std::string& folder);
/// The names in `folder` of all checkpoints, also of those whose save was killed; sorted. None where no folder is.
std::vector<std::string> list_checkpoints(const std::string& who, const std::string& folder);

/// Ends a save that was killed: what is complete takes its name if that is free, the rest goes.
void settle_checkpoint(const std::string& who, const std::string& path);
/// PATH.partial, which is complete, becomes PATH. What was there before stays under another name until
/// settle_checkpoint.
void exchange_checkpoint(const std::string& who, const std::string& path);
/// The same, and what was there before goes.
void put_checkpoint_in_place(const std::string& who, const std::string& path);
/// Removes a folder, complete or not; half of it is never complete.
void discard_checkpoint(const std::string& who, const std::string& folder);

/// For tests: whether names of folders are exchanged in one step (the default) or as where a file system cannot.
void exchange_checkpoints_in_one_step(bool one_step);

}  // namespace moonhalo::io
