// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "moonhalo/engine/dispatch/rules.h"

namespace moonhalo {

/// While it lives, run functions can ask for the tensors that the call was given, before they were moved; unless
/// `asked` is false. Calls inside a call hide those of the outer one.
class GivenTensors {
 public:
  GivenTensors(bool asked, at::ArrayRef<c10::IValue> arguments) {
    if (asked) [[unlikely]]
      keep(arguments);
  }
  ~GivenTensors() {
    if (!arguments_.empty()) [[unlikely]]
      forget();
  }
  GivenTensors(const GivenTensors&) = delete;

  /// The tensor of an argument, or the item of a list. Undefined outside a call whose plan says asks_for_tensors.
  static at::Tensor of(Arg arg, int item = -1);

 private:
  void keep(at::ArrayRef<c10::IValue> arguments);
  void forget() const;
  std::vector<c10::IValue> arguments_;
  const GivenTensors* before_ = nullptr;
};

}  // namespace moonhalo
