// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "moonhalo/engine/launch/sockets.h"

namespace moonhalo {

/// Says why a store cannot be reached, or no longer.
class StoreLost : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A client of LibTorch's store (c10d::TCPStore), whose own client waits without a limit for a program that takes its
/// connection and says nothing. Here every wait ends at the deadline, or a second after it: what is asked last may be
/// what was missing. All calls throw StoreLost.
class StoreClient {
 public:
  /// Tries again until the deadline, because the store may not be there yet; not where another program answers.
  StoreClient(const std::string& host, uint16_t port, MeetingClock::time_point deadline);

  void set(const std::string& name, const std::string& value);
  /// Sets what is not there. Returns what is there then.
  std::string set_once(const std::string& name, const std::string& value);
  /// Adds to a number, 0 where there is none. Returns the sum.
  int64_t add(const std::string& name, int64_t number);
  bool has(const std::string& name);
  /// Until all are there. False when they are not at `until`.
  bool wait(const std::vector<std::string>& names, MeetingClock::time_point until);
  /// The values of names that are there.
  std::vector<std::string> get(const std::vector<std::string>& names);

 private:
  class Request;
  void check_it_is_a_store();
  void send(const Request& request);
  void receive(void* data, size_t bytes);
  uint8_t receive_byte();
  std::string receive_text();

  Socket socket_;
  MeetingClock::time_point deadline_;
};

}  // namespace moonhalo
