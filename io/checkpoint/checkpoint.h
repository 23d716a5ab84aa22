// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "moonhalo/engine/comm/communicator.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn
namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace moonhalo::io {

/// The state of an optimizer that is not LibTorch's own, as checkpoints have it: Lua, C++ and Python read each other's.
struct PackedOptimizer {
  /// {"by": "name", "name": kind, "param_groups": [{options, "params": names}], "state": {name: {field: number or
  /// {"$tensor": NAME}}}} as JSON. load_checkpoint sets it.
  std::string json;
  /// The tensors by NAME, of any placements. load_checkpoint reads into those that are listed; if none is, it lists all
  /// that were saved, as tensors of device "meta", and reads nothing.
  std::vector<std::pair<std::string, at::Tensor>> tensors;
};

/// The entries of a checkpoint by name. save_checkpoint reads the objects, load_checkpoint writes them. Pointers are
/// not owned.
using CheckpointItem = std::variant<torch::nn::Module*, torch::optim::Optimizer*, PackedOptimizer*, at::Tensor*,
                                    int64_t*, double*, bool*, std::string*>;
using CheckpointState = std::map<std::string, CheckpointItem>;

class BackgroundWrite;

/// A checkpoint that is being written.
class CheckpointSaving {
 public:
  CheckpointSaving(Communicator& world, std::string path, std::shared_ptr<BackgroundWrite> background);
  /// Waits for this rank's part, not for other ranks. Errors are not reported: call wait() first.
  ~CheckpointSaving();
  CheckpointSaving(CheckpointSaving&&) noexcept;

  /// Returns the path once the checkpoint is complete. Collective over the world; an error on one rank is thrown on
  /// all.
  std::string wait();
  /// True if this rank has written its part. Not collective.
  bool is_done() const;

 private:
  Communicator* world_;
  std::string path_;
  std::shared_ptr<BackgroundWrite> background_;
};

/// Settings of load_checkpoint.
struct LoadOptions {
  /// Reads all data first and compares the checksums before anything is changed.
  bool verify = true;
};

/// Settings of save_checkpoint.
struct SaveOptions {
  bool async = false;  ///< copies the tensors and returns; call wait() before the next save
  /// Divides an entry into files of at most this size, with the index of Hugging Face. 0: one file.
  int64_t max_file_bytes = 0;
};

/// Writes a checkpoint, which Lua scripts can load too: a folder with checkpoint.json and one safetensors file per
/// entry, with unsharded tensors. An earlier checkpoint at `path` is replaced in one step; if the program is killed at
/// any time, a complete checkpoint remains.
///
///     io::CheckpointState state{{"model", net.get()}, {"optimizer", &optimizer}, {"step", &step}};
///     io::save_checkpoint(world, "run/100", state);
///     io::load_checkpoint(world, "run/100", state);      any number of ranks, any sharding
///
/// All ranks of a ShardTensor's mesh write it; of plain tensors and numbers, rank 0's values are written. Optimizer
/// states are stored by the names of their parameters in the modules of `state`, otherwise by position. Collective over
/// `world`. Throws on all ranks: ValueError for values that cannot be saved, RuntimeError for disk errors.
CheckpointSaving save_checkpoint(Communicator& world, const std::string& path, const CheckpointState& state,
                                 const SaveOptions& options = {});

/// Loads the entries of `state`; other entries of the checkpoint are ignored. Names, shapes, dtypes, file sizes and
/// checksums are checked before anything changes. Throws ValueError on every rank that names the entry. Collective over
/// `world`.
void load_checkpoint(Communicator& world, const std::string& path, const CheckpointState& state,
                     const LoadOptions& options = {});

}  // namespace moonhalo::io
