// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>
#include <utility>

namespace moonhalo {

/// Sets a value during its lifetime, and puts back what was there before: of a field of a context, for example.
///
///     const ScopedValue inner(comm_context->traffic.scope, Traffic::kHalo);
template <typename T>
class ScopedValue {
 public:
  ScopedValue(T& place, std::type_identity_t<T> value)
      : place_(place), before_(std::exchange(place, std::move(value))) {}
  ~ScopedValue() { place_ = std::move(before_); }
  ScopedValue(const ScopedValue&) = delete;
  ScopedValue& operator=(const ScopedValue&) = delete;

 private:
  T& place_;
  T before_;
};

}  // namespace moonhalo
