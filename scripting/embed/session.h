// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <moonhalo/moonhalo_c.h>

#include <complex>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace moonhalo {

/// The error of a failed call, equal on all ranks. what() is mh_error().
class SessionError : public std::runtime_error {
 public:
  SessionError(mh_status status, const char* text) : std::runtime_error(text), status_(status) {}
  /// The status of the failed call.
  mh_status status() const { return status_; }

 private:
  mh_status status_;
};

/// Returns the dtype of an array's elements. Not collective.
inline mh_dtype dtype_of(const float*) { return MH_FLOAT32; }
inline mh_dtype dtype_of(const double*) { return MH_FLOAT64; }
inline mh_dtype dtype_of(const std::int32_t*) { return MH_INT32; }
inline mh_dtype dtype_of(const std::int64_t*) { return MH_INT64; }
inline mh_dtype dtype_of(const std::complex<float>*) { return MH_COMPLEX64; }
inline mh_dtype dtype_of(const std::complex<double>*) { return MH_COMPLEX128; }

/// Returns a packed block, the last dim fastest. `extent` includes the ghosts. `ghosts` has the number of ghost rows on
/// each side, per dim (empty: none). `begin` is the index of the first owned row in the whole field (empty: 0). Throws
/// std::invalid_argument for lists of different lengths and for more than MH_MAX_DIMS dims. Set the other members of
/// the mh_block afterwards if needed. Not collective.
template <class T>
mh_block make_block(T* data, const std::vector<std::int64_t>& extent, const std::vector<std::int64_t>& ghosts = {},
                    const std::vector<std::int64_t>& begin = {}) {
  mh_block block{};
  const std::size_t ndim = extent.size();
  if (ndim > MH_MAX_DIMS || (!ghosts.empty() && ghosts.size() != ndim) || (!begin.empty() && begin.size() != ndim))
    throw std::invalid_argument("make_block: extent, ghosts and begin have a number for each of at most 8 dims");
  block.size = sizeof(block);
  block.data = data;
  block.dtype = dtype_of(data);
  block.ndim = static_cast<int>(ndim);
  for (std::size_t d = 0; d < ndim; ++d) {
    block.extent[d] = extent[d];
    if (!ghosts.empty()) block.ghost_low[d] = block.ghost_high[d] = ghosts[d];
    if (!begin.empty()) block.begin[d] = begin[d];
  }
  return block;
}

/// A C++11 wrapper of moonhalo_c.h that needs no LibTorch. The destructor closes the session, and errors are thrown as
/// SessionError. The same calls are collective as in moonhalo_c.h, the destructor included.
class Session {
 public:
  explicit Session(const mh_options& options) { check(mh_open(&options, &session_)); }
  ~Session() { mh_close(session_); }
  Session(Session&& other) noexcept : session_(other.session_) { other.session_ = nullptr; }
  Session& operator=(Session&& other) noexcept {
    std::swap(session_, other.session_);
    return *this;
  }

  /// Registers the owned part of a block as a field of the script, without a copy, or unregisters a field. Collective.
  void field(const std::string& name, const mh_block& block) { check(mh_field(session_, name.c_str(), &block)); }
  void unregister(const std::string& name) { check(mh_field(session_, name.c_str(), nullptr)); }
  /// Registers a field that consists of boxes on this rank. Each call copies them. Collective.
  void boxes(const std::string& name, const std::vector<mh_block>& boxes) {
    check(mh_boxes(session_, name.c_str(), static_cast<int>(boxes.size()), boxes.data()));
  }
  /// Calls a function of the script and returns the first `results` numbers that it returns. Collective.
  std::vector<double> call(const std::string& function, const std::vector<double>& in = {}, std::size_t results = 0) {
    std::vector<double> out(results);
    check(mh_call(session_, function.c_str(), static_cast<int>(in.size()), in.data(), static_cast<int>(results),
                  out.data()));
    return out;
  }
  /// Does the same concurrently with the program: call_begin returns immediately, call_end waits and returns the
  /// numbers. Both are collective.
  void call_begin(const std::string& function, const std::vector<double>& in = {}) {
    check(mh_call_begin(session_, function.c_str(), static_cast<int>(in.size()), in.data()));
  }
  std::vector<double> call_end(std::size_t results = 0) {
    std::vector<double> out(results);
    check(mh_call_end(session_, static_cast<int>(results), out.data()));
    return out;
  }
  /// Save and restore the state of the script; wait until all ranks have called sync. All three are collective.
  void save(const std::string& path) { check(mh_save(session_, path.c_str())); }
  void load(const std::string& path) { check(mh_load(session_, path.c_str())); }
  void sync() { check(mh_sync(session_)); }
  /// Returns a report of this rank: version, ranks, fields and traffic. Not collective.
  std::string report() const {
    std::string text(1000, '\0');
    for (mh_status status; (status = mh_report(session_, &text[0], text.size())) != MH_OK;
         text.resize(2 * text.size())) {
      if (std::string(mh_error()).find("does not fit") == std::string::npos) check(status);
    }
    return text.substr(0, text.find('\0'));
  }

 private:
  static void check(mh_status status) {
    if (status != MH_OK) throw SessionError(status, mh_error());
  }

  mh_session* session_ = nullptr;
};

}  // namespace moonhalo
