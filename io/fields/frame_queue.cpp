// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/fields/frame_queue.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <stdexcept>
#include <utility>

#include "moonhalo/engine/base/block_memory.h"
#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/profile/memory.h"

namespace moonhalo::io {
namespace {

/// Adds to `total` what was counted since `before`.
IoStats since(const IoStats& before) {
  const IoStats& now = io_stats();
  return {now.asked - before.asked,       now.stored - before.stored,       now.chunks - before.chunks,
          now.inflated - before.inflated, now.exchanged - before.exchanged, now.library - before.library};
}

void add(IoStats& total, const IoStats& more) {
  total.asked += more.asked;
  total.stored += more.stored;
  total.chunks += more.chunks;
  total.inflated += more.inflated;
  total.exchanged += more.exchanged;
  total.library += more.library;
}

}  // namespace

std::vector<at::Tensor> FrameQueue::Ticket::wait() {
  std::unique_lock lock(mutex_);
  ready_.wait(lock, [this] { return done_; });
  add(io_stats(), std::exchange(cost_, {}));
  if (problem_) std::rethrow_exception(problem_);
  return std::move(frames_);
}

FrameQueue::FrameQueue(std::vector<FrameField> fields) : fields_(std::move(fields)), threads_(at::get_num_threads()) {
  thread_ = std::thread([this, memory = memory_counter()] {
    const CountMemoryFor rank(memory);
    work();
  });
}

FrameQueue::~FrameQueue() {
  std::deque<std::shared_ptr<Ticket>> dropped;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    dropped.swap(waiting_);
  }
  wake_.notify_all();
  thread_.join();
  for (const auto& ticket : dropped) {
    ticket->finish({}, std::make_exception_ptr(std::runtime_error("loader: this batch was dropped before it was read")),
                   {});
  }
}

void FrameQueue::Ticket::finish(std::vector<at::Tensor> frames, std::exception_ptr problem, const IoStats& cost) {
  {
    const std::lock_guard lock(mutex_);
    frames_ = std::move(frames);
    problem_ = std::move(problem);
    cost_ = cost;
    done_ = true;
  }
  ready_.notify_all();
}

std::shared_ptr<FrameQueue::Ticket> FrameQueue::submit(std::vector<FrameRequest> requests) {
  auto ticket = std::make_shared<Ticket>();
  ticket->requests_ = std::move(requests);
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(ticket);
  }
  wake_.notify_all();
  return ticket;
}

void FrameQueue::work() {
  // LibTorch's threads are counted by thread: a new one would take all cores, the rank's own may be fewer.
  if (at::get_num_threads() != threads_) at::set_num_threads(threads_);
  while (true) {
    std::shared_ptr<Ticket> ticket;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
      if (stopping_) return;
      ticket = std::move(waiting_.front());
      waiting_.pop_front();
    }
    const IoStats before = io_stats();
    std::vector<at::Tensor> frames;
    std::exception_ptr problem;
    try {
      frames = read(ticket->requests_);
    } catch (...) {  // wait() throws it
      problem = std::current_exception();
    }
    ticket->finish(std::move(frames), problem, since(before));
  }
}

std::vector<at::Tensor> FrameQueue::read(const std::vector<FrameRequest>& requests) const {
  const at::NoGradGuard guard;
  std::vector<at::Tensor> frames;
  for (const auto& request : requests)
    frames.push_back(read(fields_.at(static_cast<size_t>(request.field)), request.places));
  return frames;
}

at::Tensor FrameQueue::read(const FrameField& field, const std::vector<FramePlace>& places) const {
  std::vector<int64_t> shape = {static_cast<int64_t>(places.size()), field.channels};
  for (const Interval& rows : field.reader->rows()) shape.push_back(rows.size());
  at::Tensor frames = empty_block(shape, field.reader->dtype());
  for (size_t i = 0; i < places.size(); ++i) field.reader->read(places[i], frames.select(0, static_cast<int64_t>(i)));
  if (!field.may_be_missing) refuse_missing(frames, field, places);
  if (field.mean.defined()) {
    std::vector<int64_t> by_channel(static_cast<size_t>(frames.dim()) - 1, 1);
    by_channel[0] = field.channels;
    frames.sub_(field.mean.view(by_channel)).div_(field.std.view(by_channel));
  }
  return frames;
}

void refuse_missing(const at::Tensor& frames, const FrameField& field, const std::vector<FramePlace>& places) {
  const at::Tensor missing = frames.isnan();
  if (!missing.any().item<bool>()) return;
  int64_t first = missing.view(-1).to(at::kByte).argmax().item<int64_t>();
  std::vector<int64_t> place(static_cast<size_t>(frames.dim()));
  for (int64_t dim = frames.dim() - 1; dim >= 0; --dim) {
    place[static_cast<size_t>(dim)] = first % frames.size(dim);
    first /= frames.size(dim);
  }
  const FramePlace& frame = places[static_cast<size_t>(place[0])];
  std::vector<int64_t> rows;
  for (int64_t dim = 0; dim < field.reader->rows().ndim(); ++dim) {
    rows.push_back(field.reader->rows()[dim].begin + place[static_cast<size_t>(dim) + 2]);
  }
  TORCH_CHECK_VALUE(false, "loader: '", field.name, "' has a missing value (NaN) at ", shape_string(rows), ", channel ",
                    place[1], "\n  have  step ", frame.step, " of '", field.reader->source(frame.source).path,
                    "'\n  fix   say what missing values become: missing = {fill = 0, mask = true}");
}

}  // namespace moonhalo::io
