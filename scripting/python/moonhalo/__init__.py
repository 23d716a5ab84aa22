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
import functools as _functools

import torch as _torch  # first: its libraries are those that Moonhalo works with
from torch.optim.optimizer import register_optimizer_step_pre_hook as _register_step_pre_hook

from ._moonhalo import (CommError, Communicator, DeviceMesh, Partial, Placement, Replicate, Shard, distribute_tensor, from_local,
                        full_tensor, init_device_mesh, is_shard_tensor, manual_seed, mesh_of, mpi_world, placements, redistribute,
                        run_ranks, scatter_tensor, self_world, to_local, world, _check_trained, _replace_hooks, __version__)

ops = _torch.ops.moonhalo
_repr_of_torch = _torch.Tensor.__repr__


@_functools.wraps(_repr_of_torch)
def _repr(self, *, tensor_contents=None):
    """Of a ShardTensor: shape, placements, mesh and this rank's block, without communication. Others are PyTorch's."""
    if not is_shard_tensor(self):
        return _repr_of_torch(self, tensor_contents=tensor_contents)
    facts = [f"shape={list(self.shape)}", f"placements={placements(self)}", f"mesh={mesh_of(self)}"]
    if self.grad_fn is not None:
        facts.append(f"grad_fn=<{self.grad_fn.name()}>")
    elif self.requires_grad:
        facts.append("requires_grad=True")
    opening = "\n  local="
    block = _repr_of_torch(to_local(self.detach())).replace("\n", "\n" + " " * (len(opening) - 1))
    return f"ShardTensor({', '.join(facts)},{opening}{block})"


_torch.Tensor.__repr__ = _repr


def _needs_memory(name):
    """Gives torch.Tensor's method `name`, which reads memory, words for a ShardTensor, which has blocks on several ranks."""
    method = getattr(_torch.Tensor, name)

    @_functools.wraps(method)
    def checked(self, *args, **kwargs):
        if not is_shard_tensor(self):
            return method(self, *args, **kwargs)
        raise TypeError(f"{name}: a ShardTensor has no memory of its own but blocks on the ranks of its mesh\n"
                        f"  have  shape {list(self.shape)}, placements {placements(self)}\n"
                        f"  fix   full_tensor(x).{name}(...) on all ranks, or to_local(x).{name}(...) of this rank's block")

    setattr(_torch.Tensor, name, checked)


for _name in ("numpy", "tolist", "data_ptr", "__array__", "__dlpack__"):
    _needs_memory(_name)

_hooks_of_torch = _torch.Tensor._backward_hooks


def _set_backward_hooks(self, hooks):
    """The first hook that is registered here replaces all others in the tensor: those that bring gradients into form stay."""
    _replace_hooks(self, lambda: _hooks_of_torch.__set__(self, hooks))


_torch.Tensor._backward_hooks = property(_hooks_of_torch.__get__, _set_backward_hooks)


def _before_step(optimizer, args, kwargs):
    """Blocks may have been computed from a tensor that is no torch.nn.Parameter: nobody sums its gradients over the ranks."""
    _check_trained([parameter for group in optimizer.param_groups for parameter in group["params"]])


_register_step_pre_hook(_before_step)

__all__ = ["CommError", "Communicator", "DeviceMesh", "Partial", "Placement", "Replicate", "Shard", "distribute_tensor", "from_local",
           "full_tensor", "init_device_mesh", "is_shard_tensor", "manual_seed", "mesh_of", "mpi_world", "ops", "placements",
           "redistribute", "run_ranks", "scatter_tensor", "self_world", "to_local", "world"]
