// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace moonhalo {

/// One direction of a point-to-point message. `data` has any dtype and is contiguous unless the communicator
/// takes_strided; then both ends give the same shape, if either is not. The receiver knows the size.
struct Message {
  int peer;
  at::Tensor data;
  /// Or tensors of one dtype, of any strides, which travel together; then `data` is undefined. Both ends give as many,
  /// of the same shapes.
  std::vector<at::Tensor> parts = {};

  at::TensorList tensors() const { return parts.empty() ? at::TensorList(data) : at::TensorList(parts); }
  int64_t nbytes() const {
    int64_t bytes = 0;
    for (const at::Tensor& tensor : tensors()) bytes += static_cast<int64_t>(tensor.nbytes());
    return bytes;
  }
};

/// A collective under way. The tensors handed in stay alive until it ends.
class Work {
 public:
  virtual ~Work() = default;
  /// Returns when the data has arrived and the caller's send buffers may be reused. Throws on timeout or abort.
  virtual void wait() = 0;
};
using WorkPtr = std::unique_ptr<Work>;

}  // namespace moonhalo
