# SPDX-License-Identifier: Apache-2.0
"""Moonhalo under PyTorch: tensors cut over ranks, on which torch's functions and autograd work.

    import moonhalo as mh, torch

    def train(world):                                  # once on each rank
        mesh = mh.init_device_mesh(world, "cpu", [world.size])
        x = mh.scatter_tensor(torch.randn(1, 3, 64, 64) if world.rank == 0 else None, mesh, [mh.Shard(2)])
        loss = torch.nn.functional.conv2d(x, weight, padding=1).square().mean()
        loss.backward()

    mh.run_ranks(4, train)                             # ranks as threads; or train(mh.world()) under mpirun, torchrun

Collective functions are called by all ranks of a mesh in one order: those that make or leave a ShardTensor, and every
operator on one. See docs/python.md."""

import torch as _torch  # first: its libraries are those that Moonhalo works with

from . import _torch_version, data
from ._files import load_checkpoint, save_checkpoint, scatter_tensor
from ._local_map import local_map
from ._moonhalo import (
    CheckpointSaving,
    CommError,
    Communicator,
    DeviceMesh,
    File,
    Placement,
    Selection,
    __version__,
    constant,
    distribute_tensor,
    from_local,
    full_tensor,
    init_device_mesh,
    is_shard_tensor,
    local_batch,
    manual_seed,
    mesh_of,
    mpi_world,
    op_trace,
    open,
    placements,
    rebalance,
    redistribute,
    self_world,
    set_fallback,
    set_halo,
    set_output_cut,
    to_local,
    world,
)
from ._parallel import (
    ColwiseParallel,
    PairwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    distribute_module,
    parallelize_module,
)
from ._placements import Partial, Replicate, Shard, Stored
from ._rules import TensorSpec, register_sharding
from ._tensor import ShardTensor
from ._training import clip_grad_norm_, finish_grad_sync, fully_shard, replicate, set_requires_gradient_sync
from ._transforms import run_ranks

ops = _torch.ops.moonhalo

__all__ = [
    "ColwiseParallel",
    "CommError",
    "Communicator",
    "DeviceMesh",
    "PairwiseParallel",
    "ParallelStyle",
    "Partial",
    "Placement",
    "PrepareModuleInput",
    "PrepareModuleOutput",
    "Replicate",
    "RowwiseParallel",
    "SequenceParallel",
    "Shard",
    "ShardTensor",
    "Stored",
    "TensorSpec",
    "clip_grad_norm_",
    "constant",
    "data",
    "distribute_module",
    "distribute_tensor",
    "finish_grad_sync",
    "from_local",
    "full_tensor",
    "fully_shard",
    "init_device_mesh",
    "is_shard_tensor",
    "load_checkpoint",
    "local_batch",
    "local_map",
    "manual_seed",
    "mesh_of",
    "mpi_world",
    "op_trace",
    "ops",
    "parallelize_module",
    "placements",
    "rebalance",
    "redistribute",
    "register_sharding",
    "replicate",
    "run_ranks",
    "save_checkpoint",
    "scatter_tensor",
    "self_world",
    "set_fallback",
    "set_halo",
    "set_output_cut",
    "set_requires_gradient_sync",
    "to_local",
    "world",
]
