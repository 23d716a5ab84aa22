# SPDX-License-Identifier: Apache-2.0
"""Sharding rules of own operators."""

import dataclasses as _dataclasses

import torch as _torch

from ._moonhalo import DeviceMesh, Placement, _register_sharding


@_dataclasses.dataclass(frozen=True)
class TensorSpec:
    """A tensor of a call, as a registered sharding gets it: its shape, dtype, placements and mesh, which are the same
    on all ranks. It has no data."""

    shape: _torch.Size
    dtype: _torch.dtype
    placements: list[Placement]
    mesh: DeviceMesh

    @property
    def ndim(self):
        """The number of dims of the tensor."""
        return len(self.shape)


def _make_spec(shape, dtype, placements, mesh):
    return TensorSpec(_torch.Size(shape), dtype, placements, mesh)


def _overloads(op):
    if isinstance(op, (list, tuple)):
        return [one for item in op for one in _overloads(item)]
    op = getattr(op, "_opoverload", op)  # of torch.library.custom_op
    if isinstance(op, _torch._ops.OpOverloadPacket):
        return [getattr(op, name) for name in op.overloads()]
    if isinstance(op, _torch._ops.OpOverload):
        return [op]
    raise TypeError(
        f"register_sharding: this is no operator of PyTorch\n  have  {type(op).__name__}\n"
        "  fix   torch.ops.mylib.smooth, or a function that torch.library.custom_op has made"
    )


def register_sharding(op):
    """A decorator that registers the sharding rule of an operator, as PyTorch's register_sharding of
    torch.distributed.tensor.experimental does for DTensor. Call it once in a process, before the first call of the
    operator with a ShardTensor.

        @mh.register_sharding(torch.ops.mylib.smooth)
        def smooth_sharding(x, width):                          # a TensorSpec for each tensor, other arguments as given
            return [([mh.Shard(d)], [mh.Shard(d), None]) for d in range(x.ndim - 1)]

    The function returns the acceptable shardings of a call along one mesh dim: ([placement of each result], [placement
    of each argument, None for what is no tensor]). The operator then runs on each rank's blocks alone. Shard of
    arguments and results: blocks correspond. Shard of arguments and Partial of results: each rank computes an addend.
    Partial of one argument, or of all: the operator is linear. Replicate of all is always acceptable. The engine takes
    the sharding that moves least, keeps uneven blocks, and serves meshes of several dims. The function must give the
    same on all ranks. The operator needs a kernel without data (torch.library.register_fake), which tells the shapes
    of results; blocks may be empty.

    op    an operator, an overload, a function of torch.library.custom_op, or a list of these

    Raises ValueError for an operator that has a rule, was called before, or writes to its arguments; and in the call
    for shardings that do not fit. Not collective."""
    overloads = _overloads(op)

    def register(fn):
        for one in overloads:
            _register_sharding(one._schema.name, one._schema.overload_name, fn, _make_spec)
        return fn

    return register
