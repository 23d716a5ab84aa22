// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "moonhalo/io/checkpoint/checkpoint_sums.h"

namespace moonhalo::io {

/// Writes one rank's part of a checkpoint in a thread, from a copy of the tensors:
///
///     each thread    writes its bytes, then PATH.partial/rank-K.done with its contributions to the checksums
///     the last one   (it finds all these files) writes the headers with the checksums, names the checkpoint PATH
///
/// The threads never communicate, because communicators belong to the ranks' own threads. A rank that writes a
/// checkpoint of its own (layout per_rank) is rank 0 of 1; it must not take its name before those of the other ranks
/// are complete, so the thread leaves PATH.partial.
class BackgroundWrite {
 public:
  /// A run of bytes of one file. `tensor`: its number over all files; `behind`: bytes of that tensor after the run.
  struct Run {
    int64_t file, offset, bytes;
    size_t tensor;
    int64_t behind;
    int64_t position = 0;  ///< in the copy
  };

  /// `is_dry`: takes the memory, and writes nothing.
  BackgroundWrite(std::string path, int rank, int ranks, std::vector<CheckedFile> files, int64_t bytes,
                  bool is_dry = false);
  ~BackgroundWrite();  ///< waits for the thread
  BackgroundWrite(const BackgroundWrite&) = delete;

  void add(Run run, const char* data);
  /// Starts the thread. `text`: the contents of checkpoint.json, which rank 0's thread writes. `names`: the last thread
  /// gives the checkpoint its name.
  void start(std::string text, bool names = true);
  /// True if the thread of this rank has ended.
  bool is_done() const { return done_; }
  /// Waits for the thread of this rank and throws its error, if any.
  void join();
  /// Gives the checkpoint its name if no thread found all files (file systems may show new files late). Rank 0 alone,
  /// after every rank's join().
  void finish();

 private:
  void write();
  bool everybody_is_done() const;
  void complete();
  void write_checksums();
  std::string inside(const std::string& name) const { return path_ + ".partial/" + name; }
  std::string done_file(int rank) const { return inside("rank-" + std::to_string(rank) + ".done"); }

  const std::string path_;
  const int rank_, ranks_;
  const bool is_dry_;
  std::vector<CheckedFile> files_;
  at::Tensor buffer_;
  int64_t filled_ = 0;
  std::vector<Run> runs_;
  std::string text_;
  bool names_ = true;
  std::exception_ptr problem_;
  std::atomic<bool> done_{false};
  std::thread thread_;
};

}  // namespace moonhalo::io
