// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/packed_parts.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>

#include <exception>
#include <utility>

#include "moonhalo/engine/base/block_memory.h"
#include "moonhalo/engine/comm/pollable.h"

namespace moonhalo {

namespace {

at::Tensor empty_for(const Message& message) {
  int64_t count = 0;
  for (const at::Tensor& part : message.parts) count += part.numel();
  return empty_block({count}, message.parts[0].options().requires_grad(false));
}

// Calls `copy(part, its place in the message's data)`.
template <typename Copy>
void each_part_of(const Message& message, const Copy& copy) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  int64_t start = 0;
  for (const at::Tensor& part : message.parts) {
    copy(part, message.data.narrow(0, std::exchange(start, start + part.numel()), part.numel()).view(part.sizes()));
  }
}

class UnpackingWork final : public Work, public Pollable {
 public:
  UnpackingWork(WorkPtr work, std::vector<Message> arriving) : work_(std::move(work)), arriving_(std::move(arriving)) {}
  // A dropped exchange is finished. If that fails, so does the group's next verb, with the reason.
  ~UnpackingWork() override {
    try {
      wait();
    } catch (const std::exception&) {
    }
  }
  void wait() override {
    work_->wait();
    for (const Message& message : std::exchange(arriving_, {})) {
      each_part_of(message, [](const at::Tensor& part, const at::Tensor& place) { part.copy_(place); });
    }
  }
  bool ready() override { return is_ready(*work_); }

 private:
  WorkPtr work_;
  std::vector<Message> arriving_;
};

}  // namespace

PackedParts::PackedParts(std::vector<Message>& sends, std::vector<Message>& receives) {
  for (Message& message : sends) {
    if (message.parts.empty()) continue;
    message.data = empty_for(message);
    each_part_of(message, [](const at::Tensor& part, const at::Tensor& place) { place.copy_(part); });
    message.parts.clear();
  }
  for (Message& message : receives) {
    if (message.parts.empty()) continue;
    message.data = empty_for(message);
    arriving_.push_back(message);
    message.parts.clear();
  }
}

WorkPtr PackedParts::unpacking(WorkPtr work) && {
  if (arriving_.empty()) return work;
  return std::make_unique<UnpackingWork>(std::move(work), std::move(arriving_));
}

}  // namespace moonhalo
