// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <string>

#include "moonhalo/engine/sharding/mesh.h"

namespace moonhalo {

/// Sets whether values of plain tensors are compared between ranks; returns the previous setting. The default is on. A
/// plain tensor in a call with ShardTensors counts as replicated, so its values must be equal on all ranks of the mesh.
/// In such calls, forward or backward, the ranks compare a checksum: in the first calls always, then less and less
/// often. If it differs, all ranks throw the same ValueError, which lists the values per rank. The calls to check
/// follow from call counts alone, which are equal on all ranks. The setting is per rank thread and must be equal on all
/// ranks. If `world` is given, the call is collective over it and throws ValueError if the ranks pass different
/// settings.
bool set_check_replicated(bool on, Communicator* world = nullptr);
bool check_replicated();

/// Throws ValueError on every rank of `mesh` unless all ranks hold the same values, shape and dtype; the message begins
/// with `where`. Collective over the mesh. Does nothing if the check is off, on a mesh of one rank, on a fake mesh, and
/// for tensors without values (meta, deferred).
void expect_replicated(const at::Tensor& tensor, const MeshPtr& mesh, const std::string& where);

/// Called by the dispatcher if the plain tensor `tensor` is argument `arg` (item `item` of a list) of a call with
/// ShardTensors on `mesh`. `arguments` are the arguments of the call; only the numbers among them are read. Collective
/// over the mesh in the calls that are checked.
void used_with_shard_tensors(const at::Tensor& tensor, const MeshPtr& mesh, const c10::OperatorHandle& op, int arg,
                             int item, const c10::IValue* arguments);

/// Called by the dispatcher if a call on ShardTensors of `mesh` drew random numbers. Its key must be equal on all
/// ranks, or the blocks would belong to different tensors. It is compared as rarely as plain tensors are, and then the
/// call is collective over the mesh.
void draws_beside_others(const MeshPtr& mesh, const c10::OperatorHandle& op);

}  // namespace moonhalo
