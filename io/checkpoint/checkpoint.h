// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <variant>

#include "moonhalo/engine/comm/communicator.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn
namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace moonhalo::io {

/// Names what a checkpoint holds: save_checkpoint reads it, load_checkpoint writes it. Not owned.
using CheckpointItem =
    std::variant<torch::nn::Module*, torch::optim::Optimizer*, at::Tensor*, int64_t*, double*, bool*, std::string*>;
using CheckpointState = std::map<std::string, CheckpointItem>;

class BackgroundWrite;

/// A checkpoint on its way to the disk.
class CheckpointSaving {
 public:
  CheckpointSaving(Communicator& world, std::string path, std::shared_ptr<BackgroundWrite> background);
  /// Waits for this rank's part, not for others; what failed is not told.
  ~CheckpointSaving();
  CheckpointSaving(CheckpointSaving&&) noexcept;

  /// Returns the path when the checkpoint is in its place. Collective; what failed on one rank is an error on all.
  std::string wait();
  /// True if this rank has written its part.
  bool is_done() const;

 private:
  Communicator* world_;
  std::string path_;
  std::shared_ptr<BackgroundWrite> background_;
};

struct LoadOptions {
  /// Reads all data once before anything is changed, and compares their checksums.
  bool verify = true;
};

struct SaveOptions {
  bool async = false;  ///< copies the tensors and returns; the caller waits before the next save
};

/// Writes a checkpoint that scripts load, too: a folder with checkpoint.json and a safetensors file for every entry,
/// whose tensors are whole. An earlier checkpoint at `path` is replaced in one step; a kill at any moment leaves a
/// complete one.
///
///     io::CheckpointState state{{"model", net.get()}, {"optimizer", &optimizer}, {"step", &step}};
///     io::save_checkpoint(world, "run/100", state);
///     io::load_checkpoint(world, "run/100", state);      any number of ranks, any cuts
///
/// ShardTensors are written by all ranks of their mesh; of plain tensors and numbers those of rank 0 count. States of
/// optimizers go by the names of their parameters in the modules beside them, else by position. Collective over
/// `world`; errors are alike on all ranks: ValueError for what cannot be saved, RuntimeError for a disk that refuses.
CheckpointSaving save_checkpoint(Communicator& world, const std::string& path, const CheckpointState& state,
                                 const SaveOptions& options = {});

/// Loads the entries of `state`; others in the checkpoint are left. Names, shapes, dtypes, sizes of files and checksums
/// of data are checked before anything changes: ValueError, on every rank, names the entry. Collective over `world`.
void load_checkpoint(Communicator& world, const std::string& path, const CheckpointState& state,
                     const LoadOptions& options = {});

}  // namespace moonhalo::io
