// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "moonhalo/engine/comm/diagnostics/call_fingerprint.h"
#include "moonhalo/engine/comm/polling_pause.h"
#include "moonhalo/engine/comm/tcp/transport_hub.h"
#include "moonhalo/engine/comm/time_limit.h"

namespace moonhalo {

/// A group of ranks over a transport, as one of them sees it.
struct TransportGroup {
  std::shared_ptr<TransportHub> hub;
  std::shared_ptr<TransportWorld> world;
  std::vector<int> members;  ///< ranks of the transport
  int rank = 0, tag = 0;

  int size() const { return static_cast<int>(members.size()); }
  std::string& broken() const { return world->broken[tag]; }
};
using TransportGroupPtr = std::shared_ptr<const TransportGroup>;

/// The messages of one call of a verb. Each begins with a head that says which call its sender makes, so ranks that
/// diverge are found before data is read; then they send each other their calls.
class TransportCall {
 public:
  static constexpr bool kSendsEmpty = true;  // for their heads

  /// `tag` is of the call, the same on all ranks that make it.
  TransportCall(TransportGroupPtr group, const CollectiveCall& call, uint64_t tag, std::chrono::milliseconds timeout);
  /// Receives that never ended are withdrawn; memory of sends that never ended is given up.
  ~TransportCall();
  TransportCall(const TransportCall&) = delete;

  void keep(const at::Tensor& tensor) { kept_.push_back(tensor); }
  void send(const void* data, size_t bytes, int peer);
  void receive(void* data, size_t bytes, int peer);
  /// CommError when a rank is silent for too long or is suspended, ValueError when it makes another call.
  void wait_received();
  void wait();
  /// As Pollable::ready says.
  bool ready();
  bool broken() const { return !group_->broken().empty(); }

 private:
  static constexpr size_t kInlineBytes = 1024;  // smaller data is sent with its header
  struct Head;
  struct Part {
    int peer;
    std::unique_ptr<char[]> head;
    char* data;
    size_t bytes;
    std::vector<void*> requests;  // head's, then those of pieces; null: done
    bool sends, head_done = false;

    bool ended() const { return head_done && requests.size() == 1; }
  };
  Part& add(bool sends, char* data, size_t bytes, int peer);
  template <typename Begin>
  void begin(Part& part, const Begin& make);
  void announce_loss(const CommError& error);
  void note_failed();  ///< this rank does not end this call
  bool ended(void*& request);
  bool done(Part& part);
  int ended_rank();
  /// Returns what another rank of the group has found, which ends this call.
  std::optional<TransportHub::Failure> announced();
  void end_if_announced();
  /// Compares this call with those in which other ranks have waited for long.
  void compare_waiting(std::chrono::steady_clock::duration waited);
  static Head head_of(const Part& part);
  void take(Part& part);
  [[noreturn]] void refuse(Part& found);
  struct Descriptions;
  std::map<int, std::string> exchange_descriptions(const std::string& mine);
  void end_parts(bool sends_too);
  void wait_for_parts(bool sends_too);
  void pause(WaitingTime& time, const PollingPause& polling);
  [[noreturn]] void throw_timeout();

  TransportGroupPtr group_;
  CollectiveCall call_;
  uint64_t tag_;
  std::chrono::milliseconds timeout_;
  std::vector<Part> parts_;
  bool announces_ = true;  // that it waits
  std::string failure_;    // of a request
  std::vector<at::Tensor> kept_;
};

}  // namespace moonhalo
