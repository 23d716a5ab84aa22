// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <array>

#include "moonhalo/ops/neighborhood/block.h"

namespace moonhalo {

/// The tensors that neighborhood_backward makes gradients from, and what its gradients are multiplied with.
struct NeighborhoodSecond {
  at::Tensor cotangent_query, cotangent_key, cotangent_value;  ///< shapes of query, key, value
  at::Tensor grad_output, grad_logsumexp;
  at::Tensor query, key, value;
};

/// Gradients of sum(cotangents * neighborhood_backward(...)) in grad_output, grad_logsumexp, query, key and value, for
/// the queries of a block; `key`, `value` and their cotangents hold the rows that the call's axes say, and so do their
/// gradients.
/// Plain tensors, all defined, no autograd. Keys and values are gathered by window for some queries at a time: memory
/// is tokens x window numbers for the places, and a bounded amount for what is gathered.
std::array<at::Tensor, 5> neighborhood_second(const NeighborhoodSecond& given, const NeighborhoodCall& call);

}  // namespace moonhalo
