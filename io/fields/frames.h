// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "moonhalo/engine/base/box.h"
#include "moonhalo/io/fields/domain_file.h"

namespace moonhalo::io {

/// One dataset of one file, or a tensor, seen as frames: a frame is a step of a trajectory, [channels, space...].
/// Numbers of dims are the dataset's; those that are neither of steps, of trajectories nor of space count channels, in
/// their order.
struct FrameSource {
  std::string path, dataset;
  int64_t step_dim = -1;    ///< -1: there is one step
  int64_t sample_dim = -1;  ///< of trajectories; -1: there is one
  std::vector<int64_t> channel_dims, space_dims;
  std::string version = {};  ///< what file_version said when the head was read; "": any
  at::Tensor values = {};    ///< in place of a file: on the CPU, of any real dtype
  int64_t changes = -1;      ///< writes into `values` that there were when its head was made
};

/// A frame of a source.
struct FramePlace {
  int64_t source, sample, step;
  auto operator<=>(const FramePlace&) const = default;
};

/// Reads frames of any number of files, decoded as each file says. Opens files when they are needed and keeps a few
/// open; keeps what was decoded as long as there is space: steps that a chunk holds together are read together, so
/// that frames of one chunk, and windows that overlap, cost one reading. A file that is another one than its source
/// says before or after a reading is a ValueError, since ranks would mix both. Of one thread at a time.
class FrameReader {
 public:
  /// `rows`: those of space to read. `cache_bytes`: for frames that are kept.
  FrameReader(std::vector<FrameSource> sources, Box rows, at::ScalarType dtype, int64_t cache_bytes);

  /// Fills `out` [channels, rows of space...].
  void read(const FramePlace& place, const at::Tensor& out);

  const FrameSource& source(int64_t source) const { return sources_[static_cast<size_t>(source)]; }
  at::ScalarType dtype() const { return dtype_; }
  const Box& rows() const { return rows_; }

 private:
  using Key = std::tuple<int64_t, int64_t, int64_t>;  // source, sample, first step
  struct Slab {
    at::Tensor frames;  // [steps, channels, space...]
    std::list<Key>::iterator use;
  };
  struct Steps {
    int64_t first, count;
  };
  at::Tensor frame_of(const FrameSource& source, const FramePlace& place) const;
  at::Tensor frame_in_file(const FrameSource& source, const FramePlace& place);
  void check_same_file(const FrameSource& source);
  Dataset dataset(const FrameSource& source);
  Steps steps_together(const Dataset& dataset, const FrameSource& source, int64_t step) const;
  at::Tensor load(const Dataset& dataset, const FrameSource& source, int64_t sample, const Steps& steps) const;
  void keep(const Key& key, const at::Tensor& frames);

  const std::vector<FrameSource> sources_;
  const Box rows_;
  const at::ScalarType dtype_;
  const int64_t cache_bytes_;
  std::map<std::pair<std::string, std::string>, uint64_t> identities_;  // of paths and datasets read so far
  std::list<std::pair<std::string, File>> files_;                       // last used first
  std::map<std::pair<std::string, std::string>, Dataset> datasets_;     // of open files
  std::list<Key> uses_;                                                 // last used first
  std::map<Key, Slab> slabs_;
  int64_t kept_bytes_ = 0;
};

}  // namespace moonhalo::io
