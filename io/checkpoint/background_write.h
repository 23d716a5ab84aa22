// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "moonhalo/io/checkpoint/checkpoint_sums.h"

namespace moonhalo::io {

/// One rank's part of a checkpoint, copied, on its way to the disk. A thread writes it and says so by a file
/// rank-K.done in PATH.partial, with what its bytes add to the checksums; that of the rank which finds all of them
/// writes the headers with the checksums, and gives the checkpoint its name. The threads
/// never communicate: a rank's communicators are not theirs. A rank that writes a checkpoint of its own is rank 0 of 1;
/// other ranks' have to be complete before it takes its name, so the thread leaves PATH.partial.
class BackgroundWrite {
 public:
  /// Bytes that go to one place of a file: of a tensor, numbered over all files, of which `behind` follow.
  struct Run {
    int64_t file, offset, bytes;
    size_t tensor;
    int64_t behind;
    int64_t position = 0;  ///< in the copy
  };

  BackgroundWrite(std::string path, int rank, int ranks, std::vector<CheckedFile> files, int64_t bytes);
  ~BackgroundWrite();  ///< waits for the thread
  BackgroundWrite(const BackgroundWrite&) = delete;

  void add(Run run, const char* data);
  /// `text` becomes checkpoint.json (rank 0's; others give nothing). `names`: the last thread gives the checkpoint its
  /// name.
  void start(std::string text, bool names = true);
  /// True if the thread of this rank has ended.
  bool is_done() const { return done_; }
  /// Waits for the thread of this rank; throws what it failed of.
  void join();
  /// Gives the checkpoint its name where no thread could (a file system that shows new files late). Rank 0 alone, after
  /// every rank's join().
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
