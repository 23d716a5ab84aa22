// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

namespace moonhalo {

/// A value of a context whose type is defined in one source file alone, made at its first use there.
template <typename T>
class MadeOnUse {
 public:
  T& operator*() {
    if (!value_) [[unlikely]]
      value_ = std::make_shared<T>();
    return *value_;
  }
  T* operator->() { return &**this; }

 private:
  std::shared_ptr<T> value_;
};

}  // namespace moonhalo
