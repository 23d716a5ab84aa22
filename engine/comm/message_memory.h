// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "moonhalo/engine/comm/sum_tree.h"

namespace moonhalo {

/// Threads copy messages up to this size when they send them, so that the sender need not wait for the receiver.
constexpr int64_t kCopiedMessageBytes = 64 * 1024;

/// The bytes of host memory that rank `rank` takes at most, beside the tensors of the call, in a collective whose ranks
/// send messages (collective_rounds.h): the same over TCP and MPI. For dry runs. Nothing of this file is collective.

int64_t memory_of_all_reduce(const SumPlan& plan, int rank, const at::Tensor& data);
int64_t memory_of_reduce_scatter(const SumPlan& plan, int rank, at::IntArrayRef counts, at::ScalarType dtype);
int64_t memory_of_all_gather(int rank, at::IntArrayRef counts, size_t item);
int64_t memory_of_all_to_all(int ranks, int64_t largest, size_t item);

}  // namespace moonhalo
