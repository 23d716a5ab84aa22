// SPDX-License-Identifier: Apache-2.0
// Shared by the communicators that work with point-to-point messages. A `Call` collects the messages of one call by
// keep(tensor), send(data, bytes, peer), receive(data, bytes, peer), and has wait_received() (until all that is to come
// has come; memory that is sent stays in use), wait() (until all has ended), ready() (wait would not wait) and
// broken(). Where its kSendsEmpty is true, parts of no bytes are sent too.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "moonhalo/engine/base/block_memory.h"
#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/comm/dropped_work.h"
#include "moonhalo/engine/comm/message_counts.h"
#include "moonhalo/engine/comm/pollable.h"
#include "moonhalo/engine/comm/reduction_kernels.h"

namespace moonhalo {

inline char* bytes_of(const at::Tensor& tensor) { return static_cast<char*>(tensor.mutable_data_ptr()); }
inline const char* const_bytes_of(const at::Tensor& tensor) {
  return static_cast<const char*>(tensor.const_data_ptr());
}
inline at::Tensor byte_buffer(size_t bytes) { return empty_block({static_cast<int64_t>(bytes)}, at::kByte); }

/// The shares of `count` elements that `size` ranks reduce in an all_reduce; that of rank r begins at count * r / size.
inline std::vector<int64_t> even_shares(int64_t count, int size) {
  std::vector<int64_t> shares;
  for (int r = 0; r < size; ++r) shares.push_back(count * (r + 1) / size - count * r / size);
  return shares;
}

/// An exchange under way.
template <typename Call>
class MessagesUnderWay final : public Work, public Pollable {
 public:
  explicit MessagesUnderWay(std::unique_ptr<Call> call) : call_(std::move(call)) {}
  ~MessagesUnderWay() override {
    if (call_ && !call_->broken()) finish_dropped(*this);
  }
  void do_wait() override {
    if (!call_) return;
    const std::unique_ptr<Call> call = std::move(call_);
    call->wait();
  }
  bool ready() override { return !call_ || call_->ready(); }

 private:
  std::unique_ptr<Call> call_;
};

template <typename Call>
WorkPtr start_exchange(std::unique_ptr<Call> call, const std::vector<Message>& sends,
                       const std::vector<Message>& receives) {
  for (const Message& message : receives) {
    call->keep(message.data);
    call->receive(bytes_of(message.data), message.data.nbytes(), message.peer);
  }
  for (const Message& message : sends) {
    call->keep(message.data);
    call->send(const_bytes_of(message.data), message.data.nbytes(), message.peer);
  }
  return std::make_unique<MessagesUnderWay<Call>>(std::move(call));
}

/// Memory that goes to a rank, or comes from one; peer -1: none does.
struct Outgoing {
  int peer;
  const char* data;
  size_t bytes;
};
struct Incoming {
  int peer;
  char* data;
  size_t bytes;
};
/// At most one message each way. Returns when the one that arrives has come.
template <typename Call>
void pass_on(Call& call, const Outgoing& leaving, const Incoming& arriving) {
  const auto must_send = [](int peer, size_t bytes) { return peer >= 0 && (bytes > 0 || Call::kSendsEmpty); };
  if (must_send(arriving.peer, arriving.bytes)) call.receive(arriving.data, arriving.bytes, arriving.peer);
  if (must_send(leaving.peer, leaving.bytes)) call.send(leaving.data, leaving.bytes, leaving.peer);
  call.wait_received();
}

/// Part r of `in` goes to rank r, and what comes from all is stored one after another in `out`.
template <typename Call>
void swap_parts(Call& call, int rank, const at::Tensor& in, at::IntArrayRef send_counts, const at::Tensor& out,
                at::IntArrayRef receive_counts) {
  const int size = static_cast<int>(send_counts.size());
  const size_t item = in.itemsize();
  call.keep(in);
  call.keep(out);
  char *to = bytes_of(out), *own_place = nullptr;
  for (int r = 0; r < size; ++r) {
    const size_t bytes = receive_counts[r] * item;
    if (r == rank) own_place = to;
    if (r != rank && (bytes > 0 || Call::kSendsEmpty)) call.receive(to, bytes, r);
    to += bytes;
  }
  const char* from = const_bytes_of(in);
  for (int r = 0; r < size; ++r) {
    const size_t bytes = send_counts[r] * item;
    if (r != rank && (bytes > 0 || Call::kSendsEmpty)) call.send(from, bytes, r);
    if (r == rank && bytes > 0) std::memmove(own_place, from, bytes);
    from += bytes;
  }
  call.wait();
}

/// Part r of `in` goes to rank r; what comes for this rank is reduced into `out`. All messages have ended in the end.
template <typename Call>
void reduce_parts(Call& call, int rank, const at::Tensor& in, at::IntArrayRef counts, char* out, ReduceOp op) {
  const int size = static_cast<int>(counts.size());
  const size_t item = in.itemsize(), mine = counts[rank] * item;
  const at::Tensor arrived = byte_buffer(mine * size);
  call.keep(in);
  call.keep(arrived);
  std::vector<const void*> sources;
  for (int r = 0; r < size; ++r) {
    char* const place = bytes_of(arrived) + mine * r;
    sources.push_back(place);
    if (r != rank && (mine > 0 || Call::kSendsEmpty)) call.receive(place, mine, r);
  }
  const char* part = const_bytes_of(in);
  for (int r = 0; r < size; ++r) {
    const size_t bytes = counts[r] * item;
    if (r == rank) sources[r] = part;
    if (r != rank && (bytes > 0 || Call::kSendsEmpty)) call.send(part, bytes, r);
    part += bytes;
  }
  const bool out_is_sent = out != sources[rank] && out < part && const_bytes_of(in) < out + mine;
  out_is_sent ? call.wait() : call.wait_received();
  reduce_elements(op, in.scalar_type(), sources, counts[rank], static_cast<void*>(out));
  call.wait();
}

/// `all` holds the `data` of each rank, one after another.
inline void reduce_gathered(const at::Tensor& all, int size, const at::Tensor& data, ReduceOp op) {
  std::vector<const void*> sources;
  for (int r = 0; r < size; ++r) sources.push_back(const_bytes_of(all) + data.nbytes() * r);
  reduce_elements(op, data.scalar_type(), sources, data.numel(), data.mutable_data_ptr());
}

}  // namespace moonhalo
