// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>
#include <c10/util/FunctionRef.h>

#include <memory>
#include <mutex>
#include <string>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/comm/device/device_watch.h"
#include "moonhalo/engine/comm/device/nccl_api.h"

namespace moonhalo {

/// One communicator of NCCL, which never blocks: every call returns at once, and what it began is asked about. One
/// thread at a time is inside of it, so that another may abort it.
class NcclComm final : public WatchedComm {
 public:
  /// Makes one for the ranks of `host`, each with a device of its own. Collective; CommError on all ranks when it
  /// cannot be made on one of them.
  static std::shared_ptr<NcclComm> make(const NcclApi& api, Communicator& host, c10::Device device);
  ~NcclComm() override { abandon(); }

  /// Calls of one group, which NCCL carries out together: `calls` returns its result. Returns when NCCL has taken them,
  /// so that events may be recorded behind them; CommError for what it refuses, or when `watch` has failed.
  void post(const char* verb, const DeviceWatch& watch, c10::function_ref<int(NcclApi::Comm)> calls);

  std::string problem() override;
  void abort() override;
  /// Ends it when all its operations have ended; waits a few seconds at most. Not collective.
  static void close(const std::shared_ptr<NcclComm>& comm);

 private:
  NcclComm(const NcclApi& api, c10::Device device) : api_(api), device_(device) {}
  int state();
  std::string text_of(int result) const;
  void abandon();

  const NcclApi& api_;
  c10::Device device_;
  std::mutex mutex_;
  NcclApi::Comm comm_ = nullptr;
};

}  // namespace moonhalo
