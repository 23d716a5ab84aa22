// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "moonhalo/engine/comm/communicator.h"

namespace moonhalo {

/// Point-to-point messages supplied by the host program, for example by an MPI library other than the one that
/// Moonhalo was built with. Messages of one pair of ranks and one tag arrive in the order of sending, and match
/// receives in the order of posting. What fails throws CommError.
class Transport {
 public:
  virtual ~Transport() = default;
  /// That of its communicators' backend.
  virtual const char* name() const { return "transport"; }
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// True if other threads of the program may send and receive meanwhile.
  virtual bool any_thread() const = 0;
  /// A rank that sends nothing more, and its last words; none if it was lost.
  struct Gone {
    int rank;
    std::optional<std::vector<uint64_t>> words;
  };
  /// As far as is known. Does not wait. Called by any thread where any_thread says so.
  virtual std::vector<Gone> gone() { return {}; }
  /// Stores the words, which are sent to all others when this transport ends.
  virtual void give_last_words(std::vector<uint64_t>) {}
  /// Begins to send, or to receive at most, `bytes` (0 to kPieceBytes). The memory is in use until test says so.
  virtual void* send(const void* data, size_t bytes, int peer, int tag) = 0;
  virtual void* receive(void* data, size_t bytes, int peer, int tag) = 0;
  /// True when it is done; the request is gone then, and null. Where it throws, the request is gone if it is null.
  virtual bool test(void*& request) = 0;
  /// Withdraws a receive: it is gone, and its memory is no longer in use.
  virtual void cancel(void*& request) = 0;

  static constexpr size_t kPieceBytes = size_t{1} << 30;
  /// Tags are 0 to this: what MPI promises at least.
  static constexpr int kLastTag = 32767;
  /// The tag of notes of ranks that are suspended. Receives of it may stay open for ever, also from a rank that
  /// has ended.
  static constexpr int kNoteTag = 0;
};
using TransportPtr = std::shared_ptr<Transport>;

/// Withdraws a receive that may be under way, so that `memory` may go. Where that fails the transport may still write,
/// so the memory is given up.
template <typename Memory>
void withdraw(Transport& transport, void*& request, std::unique_ptr<Memory>& memory) {
  if (request == nullptr) return;
  try {
    transport.cancel(request);
  } catch (const CommError&) {
    static_cast<void>(memory.release());
  }
  request = nullptr;
}

/// Creates `worlds` communicators over all ranks of `transport`, which has no other user from then on. No
/// communication.
std::vector<CommunicatorPtr> make_transport_communicators(const TransportPtr& transport, int worlds);

}  // namespace moonhalo
