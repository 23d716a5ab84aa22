// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/DispatchKey.h>

namespace moonhalo {

/// The key above autograd that every ShardTensor has too. Operators with kernels for sparse tensors are met there, so
/// that a sparse tensor beside a ShardTensor is refused (NotImplementedError that names the remedy) before such a
/// kernel reads memory that a ShardTensor has not. It costs the others nothing.
inline constexpr c10::DispatchKey kSparseCheckKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

}  // namespace moonhalo
