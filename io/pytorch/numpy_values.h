// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string_view>

#include "moonhalo/io/pytorch/pickle.h"

namespace moonhalo::io {

/// Arrays and scalars of numpy within a pickle, whose bytes are in the pickle itself: little-endian numbers and
/// booleans. Arrays of other elements stay objects.
class NumpyValues {
 public:
  explicit NumpyValues(const Pickle& pickle) : pickle_(pickle) {}
  /// A tensor of an object that is a numpy array, or nothing; also nothing where its bytes do not fit its shape, or
  /// where all arrays would take more memory than the pickle.
  std::optional<at::Tensor> array(const PickleValue& object);
  /// A number of an object that is a scalar of numpy, or nothing.
  std::optional<at::Scalar> scalar(const PickleValue& object) const;

 private:
  std::optional<at::ScalarType> dtype(const PickleValue& object) const;
  bool is_call(const PickleValue& object, std::string_view function) const;

  const Pickle& pickle_;
  int64_t used_ = 0;
};

}  // namespace moonhalo::io
