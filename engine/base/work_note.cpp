// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/base/work_note.h"

#include <utility>

#include "moonhalo/engine/base/base_context.h"

namespace moonhalo {

int64_t memory_bytes(at::TensorList tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += tensor.defined() ? static_cast<int64_t>(tensor.nbytes()) : 0;
  return bytes;
}

WorkListener* listen_to_work(WorkListener* listener) { return std::exchange(base_context->work_listener, listener); }

void note_work(const char* kernel, int64_t macs, int64_t bytes) {
  if (WorkListener* const listener = base_context->work_listener) [[unlikely]]
    listener->worked(kernel, macs, bytes);
}

}  // namespace moonhalo
