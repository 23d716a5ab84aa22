// SPDX-License-Identifier: Apache-2.0
// Tensors of devices by way of page-locked memory of the host.
#include <exception>
#include <utility>

#include "moonhalo/engine/comm/device/device_communicator.h"
#include "moonhalo/engine/comm/device/host_stage.h"
#include "moonhalo/engine/comm/dropped_work.h"
#include "moonhalo/engine/comm/pollable.h"
#include "moonhalo/engine/comm/stats_pause.h"

namespace moonhalo {
namespace {

using Tensors = std::vector<at::Tensor>;

// Messages that the host carries; those for the device are copied there by wait().
class StagedExchange final : public Work, public Pollable {
 public:
  StagedExchange(std::shared_ptr<const HostStage> stage, c10::Event ready, WorkPtr messages, Tensors places,
                 Tensors arrivals)
      : stage_(std::move(stage)),
        ready_(std::move(ready)),
        messages_(std::move(messages)),
        places_(std::move(places)),
        arrivals_(std::move(arrivals)) {}
  // As that of the host is, whose destructor reports its errors, or is silent where the group's next verb tells
  // them.
  ~StagedExchange() override {
    try {
      if (messages_) messages_->wait();
    } catch (const std::exception&) {
      return;
    }
    finish_dropped(*this);
  }
  bool ready() override { return !messages_ || is_ready(*messages_); }
  void do_wait() override {
    if (!messages_) return;
    const WorkPtr messages = std::move(messages_);
    messages->wait();
    if (!arrivals_.empty()) stage_->to_device(places_, arrivals_, ready_);
    places_.clear();
    arrivals_.clear();
  }

 private:
  std::shared_ptr<const HostStage> stage_;
  c10::Event ready_;
  WorkPtr messages_;
  Tensors places_, arrivals_;
};

Tensors of_device(const std::vector<Message>& messages) {
  Tensors tensors;
  for (const Message& message : messages) {
    if (!message.data.is_cpu()) tensors.push_back(message.data);
  }
  return tensors;
}
// Instead of those on the device.
void put_in_place(std::vector<Message>& messages, const Tensors& places) {
  auto place = places.begin();
  for (Message& message : messages) {
    if (!message.data.is_cpu()) message.data = *place++;
  }
}

class StagedCommunicator final : public DeviceCommunicator {
 public:
  StagedCommunicator(CommunicatorPtr host, std::shared_ptr<const HostStage> stage)
      : DeviceCommunicator(std::move(host), stage->device()), stage_(std::move(stage)) {}

  const char* backend() const override { return "staged"; }

 protected:
  WorkPtr do_exchange(std::vector<Message> sends, std::vector<Message> receives) override {
    const ScopedStatsPause inside;
    const Tensors leaving = of_device(sends), arrivals = of_device(receives);
    if (leaving.empty() && arrivals.empty()) return host()->exchange_async(std::move(sends), std::move(receives));
    c10::Event ready = stage_->mark();
    const Tensors places = HostStage::places_for(arrivals);
    put_in_place(receives, places);
    if (!leaving.empty()) put_in_place(sends, stage_->to_host(leaving, ready));
    return std::make_unique<StagedExchange>(
        stage_, std::move(ready), host()->exchange_async(std::move(sends), std::move(receives)), places, arrivals);
  }

  void do_all_reduce(at::Tensor& data, ReduceOp op) override {
    on_host(data, data, [&](const at::Tensor&, at::Tensor& to) { host()->all_reduce(to, op); });
  }
  void do_all_gather(const at::Tensor& in, at::IntArrayRef counts, at::Tensor& out) override {
    on_host(in, out, [&](const at::Tensor& from, at::Tensor& to) { host()->all_gather(from, counts, to); });
  }
  void do_reduce_scatter(const at::Tensor& in, at::IntArrayRef counts, at::Tensor& out, ReduceOp op) override {
    on_host(in, out, [&](const at::Tensor& from, at::Tensor& to) { host()->reduce_scatter(from, counts, to, op); });
  }
  void do_all_to_all(const at::Tensor& in, at::IntArrayRef send_counts, at::Tensor& out, at::IntArrayRef receive_counts,
                     int64_t largest) override {
    on_host(in, out, [&](const at::Tensor& from, at::Tensor& to) {
      host()->all_to_all(from, send_counts, to, receive_counts, largest);
    });
  }
  void do_broadcast(at::Tensor& data, int root) override {
    on_host(data, data, [&](const at::Tensor&, at::Tensor& to) { host()->broadcast(to, root); });
  }
  CommunicatorPtr do_split(int color, int key) override {
    auto part = std::make_shared<StagedCommunicator>(host()->split(color, key), stage_);
    part->set_why(why());
    return part;
  }

 private:
  // verb(in, out) on the host, with both tensors there. What is in `out` stays where the verb leaves it.
  template <typename Verb>
  void on_host(const at::Tensor& in, at::Tensor& out, const Verb& verb) {
    const ScopedStatsPause inside;
    if (in.is_cpu() && out.is_cpu()) {
      at::Tensor result = out;
      return verb(in, result);
    }
    const c10::Event ready = stage_->mark();
    const at::Tensor from = in.is_cpu() ? in : stage_->to_host({in}, ready)[0];
    at::Tensor to = in.is_same(out) ? from : out.is_cpu() ? out : HostStage::places_for({out})[0];
    verb(from, to);
    if (!out.is_cpu()) stage_->to_device({to}, {out}, ready);
  }

  std::shared_ptr<const HostStage> stage_;
};

}  // namespace

std::shared_ptr<DeviceCommunicator> make_staged_communicator(CommunicatorPtr host, c10::Device device) {
  return std::make_shared<StagedCommunicator>(std::move(host), std::make_shared<const HostStage>(device));
}

}  // namespace moonhalo
