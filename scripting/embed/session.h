// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <moonhalo/moonhalo_c.h>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace moonhalo {

/// A call of a session failed, on all ranks alike; what() is mh_error().
class SessionError : public std::runtime_error {
 public:
  SessionError(mh_status status, const char* text) : std::runtime_error(text), status_(status) {}
  mh_status status() const { return status_; }

 private:
  mh_status status_;
};

/// moonhalo_c.h for C++11, without LibTorch: an mh_session that closes itself, and errors as exceptions. What is
/// collective there is collective here, the destructor included.
class Session {
 public:
  explicit Session(const mh_options& options) { check(mh_open(&options, &session_)); }
  ~Session() { mh_close(session_); }
  Session(Session&& other) noexcept : session_(other.session_) { other.session_ = nullptr; }
  Session& operator=(Session&& other) noexcept {
    std::swap(session_, other.session_);
    return *this;
  }

  void field(const std::string& name, const mh_block& block) { check(mh_field(session_, name.c_str(), &block)); }
  void unregister(const std::string& name) { check(mh_field(session_, name.c_str(), nullptr)); }
  /// The first `results` numbers that the function returns.
  std::vector<double> call(const std::string& function, const std::vector<double>& in = {}, std::size_t results = 0) {
    std::vector<double> out(results);
    check(mh_call(session_, function.c_str(), static_cast<int>(in.size()), in.data(), static_cast<int>(results),
                  out.data()));
    return out;
  }
  /// The same beside the program: begin returns at once, end waits and takes the numbers.
  void call_begin(const std::string& function, const std::vector<double>& in = {}) {
    check(mh_call_begin(session_, function.c_str(), static_cast<int>(in.size()), in.data()));
  }
  std::vector<double> call_end(std::size_t results = 0) {
    std::vector<double> out(results);
    check(mh_call_end(session_, static_cast<int>(results), out.data()));
    return out;
  }
  void save(const std::string& path) { check(mh_save(session_, path.c_str())); }
  void load(const std::string& path) { check(mh_load(session_, path.c_str())); }
  void sync() { check(mh_sync(session_)); }

 private:
  static void check(mh_status status) {
    if (status != MH_OK) throw SessionError(status, mh_error());
  }

  mh_session* session_ = nullptr;
};

}  // namespace moonhalo
