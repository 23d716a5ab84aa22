// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace moonhalo::io {

/// One rank's part of a checkpoint, copied, on its way to the disk. A thread writes it and says so by a file
/// rank-K.done in PATH.partial; that of the rank which finds all of them gives the checkpoint its name. The threads
/// never communicate: a rank's communicators are not theirs. A rank that writes a checkpoint of its own is rank 0 of 1;
/// other ranks' have to be complete before it takes its name, so the thread leaves PATH.partial.
class BackgroundWrite {
 public:
  /// Bytes of the copy that go to one place of a file.
  struct Run {
    int64_t file, offset, position, bytes;
  };

  BackgroundWrite(std::string path, int rank, int ranks, std::vector<std::string> files, int64_t bytes);
  ~BackgroundWrite();  ///< waits for the thread
  BackgroundWrite(const BackgroundWrite&) = delete;

  /// Adds what is to stand at `offset` of a file.
  void add(int64_t file, int64_t offset, const char* data, int64_t bytes);
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
  std::string inside(const std::string& name) const { return path_ + ".partial/" + name; }
  std::string done_file(int rank) const { return inside("rank-" + std::to_string(rank) + ".done"); }

  const std::string path_;
  const int rank_, ranks_;
  const std::vector<std::string> files_;
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
