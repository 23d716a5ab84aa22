// SPDX-License-Identifier: Apache-2.0
// Operators made of others whose composites read a tensor of a few numbers from memory: positions, lengths, factors.
// It is brought to every rank as a plain tensor; then the composite runs, on the blocks of the others. (Those whose
// derivative is not left to the composite are in engine/dispatch/operator_traits.cpp.)
#include <ATen/ATen.h>

#include "moonhalo/engine/dispatch/operator_traits.h"
#include "moonhalo/ops/support/above_autograd.h"

namespace moonhalo {
namespace {

void with_host_numbers(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  for (const char* name : {"tensor_indices_or_sections", "batch_sizes", "input_lengths", "target_lengths"}) {
    if (const auto index = op.schema().argumentIndexWithName(name)) to_host(LocalCall(op, *stack).value(Arg{*index}));
  }
  op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, *stack);
}

// Above autograd, where these composites would run.
void intercept(torch::Library& library) {
  for (const char* name : {"tensor_split.tensor_indices_or_sections", "_pad_packed_sequence", "lstm.data", "gru.data",
                           "rnn_tanh.data", "rnn_relu.data", "ctc_loss.Tensor"})
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&with_host_numbers>());
}

const InterceptAboveAutograd interception(&intercept);

}  // namespace
}  // namespace moonhalo
