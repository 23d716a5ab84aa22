// SPDX-License-Identifier: Apache-2.0
// Operators made of others whose composites read a tensor of a few numbers from memory: positions, lengths, factors.
// It is brought to every rank as a plain tensor; then the composite runs, on the blocks of the others. (Those whose
// derivative is not left to the composite are in engine/operator_facts.cpp.)
#include <ATen/ATen.h>
#include <torch/library.h>

#include "engine/operator_facts.h"

namespace moonhalo {
namespace {

void with_host_numbers(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  to_host(argument(op, *stack, 1));
  op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, *stack);
}

// Above autograd, where these composites would run.
void meet(torch::Library& library) {
  for (const char* name : {"tensor_split.tensor_indices_or_sections", "_pad_packed_sequence", "lstm.data", "gru.data",
                           "rnn_tanh.data", "rnn_relu.data"})
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&with_host_numbers>());
}

TORCH_LIBRARY_IMPL(aten, AutogradCPU, library) { meet(library); }
TORCH_LIBRARY_IMPL(aten, AutogradCUDA, library) { meet(library); }
TORCH_LIBRARY_IMPL(aten, AutogradOther, library) { meet(library); }
TORCH_LIBRARY_IMPL(aten, CustomRNGKeyId, library) { meet(library); }

}  // namespace
}  // namespace moonhalo
