// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/io/checkpoint/checkpoint.h"
#include "moonhalo/io/checkpoint/checkpoint_read.h"

namespace moonhalo::io {

// The steps of a save and of a load. save_checkpoint and load_checkpoint (checkpoint.h) pack objects of C++ for them,
// mh.checkpoint packs those of Lua.

/// The format that is written. 1: by rank 0, states of optimizers by position; 2: no tables but lists and objects.
constexpr int64_t kCheckpointFormat = 3;

/// True if `key` can be the name of an entry, and thereby of a file: letters, digits, _ and -.
bool is_entry_name(const std::string& key);

/// The tensors of one entry.
struct PackedTensors {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  std::vector<int64_t> owners;  ///< the rank that writes each if it is plain; empty: rank 0
};

/// A checkpoint in memory. {"model": {"weight": {"$tensor": "weight"}}, "step": 7} are two entries; `tensors` has
/// the "weight" of "model".
struct PackedCheckpoint {
  std::string entries;  ///< JSON, with one space of indentation for each level
  std::map<std::string, PackedTensors> tensors;
};

/// Writes a checkpoint:
///
///     rank 0      checks the path, ends a save that was killed
///     all ranks   lay out the files; compare their layouts
///     rank 0      makes PATH.partial with the empty files
///     all ranks   write their shares, or copy them for a thread
///     rank 0      writes checkpoint.json, exchanges PATH.partial with PATH
///
/// A failure on one rank is thrown on all, and removes PATH.partial. Collective over `world`.
CheckpointSaving write_checkpoint(Communicator& world, const std::string& path, const PackedCheckpoint& packed,
                                  const SaveOptions& options = {});

/// The file checkpoint.json of a folder.
struct CheckpointText {
  std::string text;
  int64_t format = 0;
  std::vector<std::string> entries;  ///< their names
};

/// Reads and checks checkpoint.json of `folder`, on this rank. ValueError if it is damaged or of a newer format.
CheckpointText read_checkpoint_text(const std::string& folder);

/// A checkpoint whose tensors can be read.
struct OpenCheckpoint {
  std::string folder;  ///< PATH, or what a killed save left complete
  CheckpointText json;
  std::shared_ptr<CheckpointReader> reader;  ///< has the files of all entries
};

/// Rank 0 finds the folder and reads checkpoint.json and the headers of all files; all ranks get them. ValueError on
/// all ranks if there is no checkpoint, or a damaged one. Collective over `world`.
OpenCheckpoint open_checkpoint(Communicator& world, const std::string& path);

}  // namespace moonhalo::io
