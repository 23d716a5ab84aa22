// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/device/nccl_comm.h"

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "moonhalo/engine/comm/interpreter_lock.h"
#include "moonhalo/engine/comm/stats_pause.h"
#include "moonhalo/engine/comm/time_limit.h"

namespace moonhalo {
namespace {

constexpr std::chrono::seconds kCloseWithin{5};

// The name that the ranks' communicators find each other by, from rank 0; its result comes along.
std::pair<int, NcclApi::UniqueId> shared_id(const NcclApi& api, Communicator& host) {
  NcclApi::UniqueId id{};
  int result = host.rank() == 0 ? api.get_unique_id(&id) : NcclApi::kSuccess;
  at::Tensor bytes = at::empty({static_cast<int64_t>(sizeof(result) + sizeof(id))}, at::kByte);
  char* const at = static_cast<char*>(bytes.mutable_data_ptr());
  std::memcpy(at, &result, sizeof(result));
  std::memcpy(at + sizeof(result), &id, sizeof(id));
  host.broadcast(bytes, 0);
  std::memcpy(&result, at, sizeof(result));
  std::memcpy(&id, at + sizeof(result), sizeof(id));
  return {result, id};
}

// The largest of all ranks, for both.
std::pair<bool, bool> any(Communicator& host, bool first, bool second) {
  at::Tensor flags = at::empty({2}, at::kInt);
  auto* const flag = flags.mutable_data_ptr<int>();
  flag[0] = first;
  flag[1] = second;
  host.all_reduce(flags, ReduceOp::kMax);
  return {flag[0] != 0, flag[1] != 0};
}

[[noreturn]] void refuse(Communicator& host, const std::string& mine) {
  std::string text = "nccl: the communicator of " + std::to_string(host.size()) + " ranks could not be made";
  const std::vector<std::string> all = host.all_gather_strings(mine);
  const char* begin = "\n  have  ";
  for (int rank = 0; rank < host.size(); ++rank) {
    if (all[rank].empty()) continue;
    text += std::exchange(begin, "\n        ") + ("rank " + std::to_string(rank)) + ": " + all[rank];
  }
  throw CommError(
      text +
      "\n  fix   set NCCL_DEBUG=WARN to see more, or take --backend staged, which goes through memory of the host");
}

}  // namespace

// The ranks ask each other again and again, so that all of them know when one cannot.
std::shared_ptr<NcclComm> NcclComm::make(const NcclApi& api, Communicator& host, c10::Device device) {
  const ScopedStatsPause set_up;
  std::shared_ptr<NcclComm> made(new NcclComm(api, device));
  const c10::DeviceGuard guard(device);
  auto [result, id] = shared_id(api, host);
  if (result == NcclApi::kSuccess) {
    NcclApi::Config config;
    result = api.comm_init_rank_config(&made->comm_, host.size(), id, host.rank(), &config);
  }
  WaitingTime time;
  for (std::chrono::microseconds pause{100};; pause = std::min(pause * 2, std::chrono::microseconds(5000))) {
    if (result == NcclApi::kSuccess || result == NcclApi::kInProgress) result = made->state();
    std::string problem;
    if (result != NcclApi::kSuccess && result != NcclApi::kInProgress) problem = made->text_of(result);
    if (problem.empty() && result == NcclApi::kInProgress && time.poll() >= host.timeout())
      problem = "not made within " + seconds_text(host.timeout());
    const auto [in_progress, failed] = any(host, result == NcclApi::kInProgress, !problem.empty());
    if (failed) {
      ends_within(kCloseWithin, [made] { made->abort(); });
      refuse(host, problem);
    }
    if (!in_progress) return made;
    const InterpreterReleased interpreter_released;
    std::this_thread::sleep_for(pause);
  }
}

int NcclComm::state() {
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr) return NcclApi::kInternalError;
  int state = NcclApi::kSuccess;
  const int result = api_.comm_get_async_error(comm_, &state);
  return result == NcclApi::kSuccess ? state : result;
}

std::string NcclComm::text_of(int result) const {
  const char* const last = comm_ != nullptr ? api_.get_last_error(comm_) : nullptr;
  return std::string("NCCL reports: ") + api_.get_error_string(result) +
         (last != nullptr && *last != '\0' ? std::string(" (") + last + ")" : "");
}

void NcclComm::post(const char* verb, const DeviceWatch& watch, c10::function_ref<int(NcclApi::Comm)> calls) {
  const c10::DeviceGuard guard(device_);
  int result = NcclApi::kSuccess;
  {
    const std::lock_guard lock(mutex_);
    watch.check(verb);
    if (comm_ == nullptr) throw CommError(std::string(verb) + ": the communicator of the device has been closed");
    result = api_.group_start();
    if (result == NcclApi::kSuccess) {
      const int called = calls(comm_);
      result = api_.group_end();
      if (called != NcclApi::kSuccess && called != NcclApi::kInProgress) result = called;
    }
  }
  // The first messages between two ranks wait until the other has come there.
  for (std::chrono::microseconds pause{20}; result == NcclApi::kInProgress;
       pause = std::min(pause * 2, std::chrono::microseconds(1000))) {
    result = state();
    watch.check(verb);
    if (result != NcclApi::kInProgress) break;
    const InterpreterReleased interpreter_released;
    std::this_thread::sleep_for(pause);
  }
  watch.check(verb);
  if (result != NcclApi::kSuccess) throw CommError(std::string(verb) + ": " + text_of(result));
}

std::string NcclComm::problem() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || comm_ == nullptr) return "";
  int state = NcclApi::kSuccess;
  const int result = api_.comm_get_async_error(comm_, &state);
  if (result != NcclApi::kSuccess) state = result;
  return state == NcclApi::kSuccess || state == NcclApi::kInProgress ? "" : text_of(state);
}

void NcclComm::abort() {
  const c10::DeviceGuard guard(device_);
  const std::lock_guard lock(mutex_);
  if (comm_ != nullptr) api_.comm_abort(std::exchange(comm_, nullptr));
}

void NcclComm::close(const std::shared_ptr<NcclComm>& comm) {
  ends_within(kCloseWithin, [comm] {
    const c10::DeviceGuard guard(comm->device_);
    const std::lock_guard lock(comm->mutex_);
    if (comm->comm_ != nullptr) comm->api_.comm_destroy(std::exchange(comm->comm_, nullptr));
  });
}

// The library may be gone already, or wait for other ranks: one that was not closed is left to the end of the process.
void NcclComm::abandon() { comm_ = nullptr; }

}  // namespace moonhalo
