// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "moonhalo/io/base/io_stats.h"
#include "moonhalo/io/fields/frames.h"

namespace moonhalo::io {

/// Says how the frames of a field are made ready: (value - mean) / std by channel, where these are given.
struct FrameField {
  std::string name;
  std::shared_ptr<FrameReader> reader;
  int64_t channels = 1;
  at::Tensor mean, std;        ///< [channels], of the reader's dtype
  bool may_be_missing = true;  ///< false: a NaN is an error
};

struct FrameRequest {
  int64_t field;
  std::vector<FramePlace> places;
};

/// Reads ahead: a thread carries out requests one after the other while its rank computes. It never communicates.
/// Readers are the thread's alone as long as requests are under way.
class FrameQueue {
 public:
  /// One batch on its way.
  class Ticket {
   public:
    /// The frames of every request, [places, channels, rows...]; throws what reading them failed of.
    std::vector<at::Tensor> wait();

   private:
    friend class FrameQueue;
    void finish(std::vector<at::Tensor> frames, std::exception_ptr problem, const IoStats& cost);
    std::vector<FrameRequest> requests_;
    std::vector<at::Tensor> frames_;
    std::exception_ptr problem_;
    IoStats cost_;
    bool done_ = false;
    std::mutex mutex_;
    std::condition_variable ready_;
  };

  explicit FrameQueue(std::vector<FrameField> fields);
  ~FrameQueue();  ///< drops what has not begun, whose wait() then throws, and waits for the rest
  FrameQueue(const FrameQueue&) = delete;

  std::shared_ptr<Ticket> submit(std::vector<FrameRequest> requests);

 private:
  void work();
  std::vector<at::Tensor> read(const std::vector<FrameRequest>& requests) const;
  at::Tensor read(const FrameField& field, const std::vector<FramePlace>& places) const;

  const std::vector<FrameField> fields_;
  const int threads_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<Ticket>> waiting_;
  bool stopping_ = false;
  std::thread thread_;
};

/// ValueError that names the first NaN of `frames`, [places, channels, rows...].
void refuse_missing(const at::Tensor& frames, const FrameField& field, const std::vector<FramePlace>& places);

}  // namespace moonhalo::io
