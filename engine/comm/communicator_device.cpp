// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/communicator_device.h"

#include <c10/util/Exception.h>

#include <utility>

#include "moonhalo/engine/comm/dropped_work.h"
#include "moonhalo/engine/comm/host_stage.h"
#include "moonhalo/engine/comm/pollable.h"
#include "moonhalo/engine/comm/time_limit.h"
#include "moonhalo/engine/comm/uncounted.h"

namespace moonhalo {
namespace {

using Copies = std::vector<std::pair<at::Tensor, at::Tensor>>;

// Messages that the host carries; those for the device are copied there by wait().
class StagedExchange final : public Work, public Pollable {
 public:
  StagedExchange(std::shared_ptr<const HostStage> stage, c10::Event ready, WorkPtr messages, Copies arrivals)
      : stage_(std::move(stage)),
        ready_(std::move(ready)),
        messages_(std::move(messages)),
        arrivals_(std::move(arrivals)) {}
  // As that of the host is.
  ~StagedExchange() override { finish_dropped(*this); }
  bool ready() override { return !messages_ || is_ready(*messages_); }
  void wait() override {
    if (!messages_) return;
    const WorkPtr messages = std::move(messages_);
    messages->wait();
    if (!arrivals_.empty()) stage_->to_device(arrivals_, ready_);
    arrivals_.clear();
  }

 private:
  std::shared_ptr<const HostStage> stage_;
  c10::Event ready_;
  WorkPtr messages_;
  Copies arrivals_;
};

class DeviceCommunicator final : public Communicator, public HasTimeLimit {
 public:
  // One counter for both: verbs are counted here, and not again by the host's.
  DeviceCommunicator(CommunicatorPtr host, std::shared_ptr<const HostStage> stage)
      : Communicator(host->rank(), host->size(),
                     std::shared_ptr<CommStats>(host, const_cast<CommStats*>(&host->stats()))),
        host_(std::move(host)),
        stage_(std::move(stage)) {
    set_timeout(host_->timeout());
  }

  const char* backend() const override { return "staged"; }
  void abort(const std::string& reason) override { host_->abort(reason); }
  void set_time_limit(std::chrono::milliseconds limit) override { moonhalo::set_time_limit(*host_, limit); }
  c10::Device device() const { return stage_->device(); }
  const CommunicatorPtr& host() const { return host_; }

 protected:
  bool takes(at::Device device) const override { return device.is_cpu() || device == this->device(); }

  WorkPtr do_exchange(std::vector<Message> sends, std::vector<Message> receives) override {
    const Uncounted inside;
    std::vector<at::Tensor> leaving;
    for (const Message& message : sends) {
      if (!message.data.is_cpu()) leaving.push_back(message.data);
    }
    Copies arrivals;
    for (Message& message : receives) {
      if (message.data.is_cpu()) continue;
      arrivals.emplace_back(HostStage::place_for(message.data), message.data);
      message.data = arrivals.back().first;
    }
    if (leaving.empty() && arrivals.empty()) return host_->exchange_async(std::move(sends), std::move(receives));
    c10::Event ready = stage_->mark();
    if (!leaving.empty()) {
      leaving = stage_->to_host(leaving);
      auto copy = leaving.begin();
      for (Message& message : sends) {
        if (!message.data.is_cpu()) message.data = *copy++;
      }
    }
    return std::make_unique<StagedExchange>(
        stage_, std::move(ready), host_->exchange_async(std::move(sends), std::move(receives)), std::move(arrivals));
  }

  void do_all_reduce(at::Tensor& data, ReduceOp op) override {
    on_host(data, data, [&](const at::Tensor&, at::Tensor& host) { host_->all_reduce(host, op); });
  }
  void do_all_gather(const at::Tensor& in, at::IntArrayRef counts, at::Tensor& out) override {
    on_host(in, out, [&](const at::Tensor& from, at::Tensor& to) { host_->all_gather(from, counts, to); });
  }
  void do_reduce_scatter(const at::Tensor& in, at::IntArrayRef counts, at::Tensor& out, ReduceOp op) override {
    on_host(in, out, [&](const at::Tensor& from, at::Tensor& to) { host_->reduce_scatter(from, counts, to, op); });
  }
  void do_all_to_all(const at::Tensor& in, at::IntArrayRef send_counts, at::Tensor& out,
                     at::IntArrayRef receive_counts) override {
    on_host(in, out,
            [&](const at::Tensor& from, at::Tensor& to) { host_->all_to_all(from, send_counts, to, receive_counts); });
  }
  void do_broadcast(at::Tensor& data, int root) override {
    on_host(data, data, [&](const at::Tensor&, at::Tensor& host) { host_->broadcast(host, root); });
  }
  void do_barrier() override {
    const Uncounted inside;
    host_->barrier();
  }
  CommunicatorPtr do_split(int color, int key) override {
    return std::make_shared<DeviceCommunicator>(host_->split(color, key), stage_);
  }

 private:
  // verb(in, out) on the host, with both tensors there. What is in `out` stays where the verb leaves it.
  template <typename Verb>
  void on_host(const at::Tensor& in, at::Tensor& out, const Verb& verb) {
    const Uncounted inside;
    if (in.is_cpu() && out.is_cpu()) {
      at::Tensor result = out;
      return verb(in, result);
    }
    const c10::Event ready = stage_->mark();
    const at::Tensor from = in.is_cpu() ? in : stage_->to_host({in})[0];
    at::Tensor to = in.is_same(out) ? from : out.is_cpu() ? out : HostStage::place_for(out);
    verb(from, to);
    if (!out.is_cpu()) stage_->to_device({{to, out}}, ready);
  }

  CommunicatorPtr host_;
  std::shared_ptr<const HostStage> stage_;
};

const DeviceCommunicator* as_device(const Communicator& group) {
  return dynamic_cast<const DeviceCommunicator*>(&group);
}

}  // namespace

CommunicatorPtr make_device_communicator(CommunicatorPtr host, c10::Device device) {
  TORCH_CHECK_VALUE(!device.is_cpu() && device.has_index(), "device communicator: ", device,
                    " is no device of its own\n  have  ", device, "\n  fix   name one by its number, as in cuda:0");
  return std::make_shared<DeviceCommunicator>(std::move(host), std::make_shared<const HostStage>(device));
}

std::optional<c10::Device> device_of(const Communicator& group) {
  const DeviceCommunicator* known = as_device(group);
  return known != nullptr ? std::optional(known->device()) : std::nullopt;
}

CommunicatorPtr host_part(Communicator& group) {
  const DeviceCommunicator* known = as_device(group);
  return known != nullptr ? known->host() : group.shared_from_this();
}

}  // namespace moonhalo
