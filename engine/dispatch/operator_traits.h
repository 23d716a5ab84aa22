// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <vector>

#include "moonhalo/engine/dispatch/rules.h"

namespace moonhalo {

/// Facts of an operator from its schema, its tags and the rules.
struct OperatorFacts {
  explicit OperatorFacts(const c10::OperatorHandle& op);

  const Rule* rule = nullptr;
  bool pointwise = false;
  bool random = false;
  bool view = false;  ///< a result aliases an argument that is not written
  bool composite_implicit = false;
  bool decomposes = false;  ///< a composite kernel that only calls other operators (foreach, fused)
  int host_argument = -1;   ///< a tensor that this kernel reads from memory: given plain to it
  bool gives_out = false;   ///< out=: what is written is not read
  bool reads_order =
      false;  ///< of its matrix, and so does its derivative: the block must have the memory order of the whole
  size_t arguments = 0;
  std::vector<bool> written;          ///< per argument
  std::vector<int> returns_argument;  ///< per result: the written argument it is, or -1
  bool returns_written = false;       ///< any of them is
  /// The operator that makes what this one writes (add for add.out, cumsum for cumsum_), where no rule writes: it
  /// is called instead, and its results are copied to where they belong.
  std::optional<c10::OperatorHandle> functional;
  std::vector<int>
      functional_from;  ///< per argument of `functional`: the argument that it is, or -1 (dtype, device ...)

 private:
  void find_decomposition(const c10::OperatorHandle& op);
  void find_aliases(const c10::FunctionSchema& schema);
  void find_functional(const c10::OperatorHandle& op);
};

/// The operator with the same arguments that writes nothing: for `add.out(self, other, *, alpha, out)` it is
/// `add.Tensor(self, other, *, alpha)`, for `cumsum_` it is `cumsum`, for `zeros.out` it is `zeros` (whose dtype and
/// device are those of the out= tensor). Nullopt for operators that write nothing, and
/// where there is none.
std::optional<c10::OperatorHandle> functional_variant(const c10::OperatorHandle& op);

/// A tensor whose numbers a kernel reads from memory: a ShardTensor becomes a plain tensor, whole on every rank.
/// Collective.
void to_host(c10::IValue& numbers);

}  // namespace moonhalo
