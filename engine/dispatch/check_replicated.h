// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <string>

#include "moonhalo/engine/sharding/mesh.h"

namespace moonhalo {

/// A plain tensor beside ShardTensors counts as replicated: its values must be the same on all ranks of the mesh. Where
/// it meets them in an operator, forward or backward, a checksum is compared: always at the first meetings, then ever
/// more rarely. Ranks that differ all throw one ValueError that says which hold what. The answer to "now?" follows from
/// numbers of calls alone, which all ranks share. Off for this rank (every rank must say the same): nothing is
/// compared. On at the start. Returns what was.
/// With `world`: collective, and a ValueError where ranks do not agree.
bool set_check_replicated(bool on, Communicator* world = nullptr);
bool check_replicated();

/// ValueError on every rank of `mesh` unless all hold the same values, shape and dtype; `where` begins the message.
/// Collective over the mesh. Nothing where the check is off, on a mesh of one rank, a fake one, or for tensors without
/// values (meta, deferred).
void expect_replicated(const at::Tensor& tensor, const MeshPtr& mesh, const std::string& where);

/// For Dispatch: `tensor`, plain, is argument `arg` (of a list: its `item`) of a call with ShardTensors on `mesh`.
/// `arguments`: those of the call, of which numbers alone are read.
void meets_shard_tensors(const at::Tensor& tensor, const MeshPtr& mesh, const c10::OperatorHandle& op, int arg,
                         int item, const c10::IValue* arguments);

/// For Dispatch: a call on ShardTensors of `mesh` drew random numbers. Their key must be that of the other ranks, or
/// blocks would hold parts of different tensors; compared as rarely as plain tensors are.
void draws_beside_others(const MeshPtr& mesh, const c10::OperatorHandle& op);

}  // namespace moonhalo
