// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <string>
#include <utility>

#include "moonhalo/engine/comm/communicator_backend.h"
#include "moonhalo/engine/comm/stats_pause.h"
#include "moonhalo/engine/comm/time_limit.h"

namespace moonhalo {

/// Base of the communicators for tensors of devices: a host communicator for control, tensors of the CPU
/// and counting (one counter for both).
class DeviceCommunicator : public CommunicatorBackend {
 public:
  explicit DeviceCommunicator(CommunicatorPtr host, c10::Device device)
      : CommunicatorBackend(host->rank(), host->size(),
                            std::shared_ptr<CommStats>(host, const_cast<CommStats*>(&host->stats()))),
        host_(std::move(host)),
        device_(device) {
    set_timeout(host_->timeout());
  }

  void abort(const std::string& reason) override { host_->abort(reason); }
  void set_time_limit(std::chrono::milliseconds limit) override {
    set_timeout(limit);
    backend_of(*host_).set_time_limit(limit);
  }
  c10::Device device() const { return device_; }
  const CommunicatorPtr& host() const { return host_; }
  /// The reason why the tensors are sent in this way, for messages.
  const std::string& why() const { return why_; }
  void set_why(std::string why) { why_ = std::move(why); }
  /// Throws if what the device computes may lack messages of a rank that was lost.
  virtual void check_arrived() const {}

 protected:
  bool takes(at::Device device) const override { return device.is_cpu() || device == device_; }
  void do_barrier() override {
    const ScopedStatsPause inside;
    host_->barrier();
  }

 private:
  CommunicatorPtr host_;
  c10::Device device_;
  std::string why_;
};

std::shared_ptr<DeviceCommunicator> make_staged_communicator(CommunicatorPtr host, c10::Device device);
std::shared_ptr<DeviceCommunicator> make_nccl_communicator(CommunicatorPtr host, c10::Device device);

}  // namespace moonhalo
