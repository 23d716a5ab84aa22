# SPDX-License-Identifier: Apache-2.0
"""A ShardTensor is a torch.Tensor, whose methods are those of torch.Tensor: here they get words for a ShardTensor."""

import copy as _copy
import functools as _functools

import torch as _torch
from torch.optim.optimizer import register_optimizer_step_pre_hook as _register_step_pre_hook

from ._moonhalo import (
    from_local,
    full_tensor,
    is_shard_tensor,
    mesh_of,
    placements,
    redistribute,
    to_local,
    _finish_grad_sync,
    _replace_accumulated_hook,
    _replace_hooks,
)

# ---- The type --------------------------------------------------------------------------------------------------------


class _TypeOfShardTensors(type(_torch.Tensor)):
    def __instancecheck__(cls, value):
        return isinstance(value, _torch.Tensor) and is_shard_tensor(value)


class ShardTensor(_torch.Tensor, metaclass=_TypeOfShardTensors):
    """For isinstance(x, ShardTensor) and annotations. A ShardTensor is a torch.Tensor (or a torch.nn.Parameter) whose
    blocks are on the ranks of a mesh; from_local, distribute_tensor and scatter_tensor make one."""

    from_local = staticmethod(from_local)

    def __new__(cls, *args, **kwargs):
        raise TypeError(
            "ShardTensor: this class makes no tensors\n"
            "  fix   from_local(block, mesh, placements), distribute_tensor or scatter_tensor"
        )


# ---- Methods and properties that only ShardTensors have --------------------------------------------------------------


def _to_local(self, *, grad_placements=None):
    """This rank's block as a plain tensor, without a copy. Differentiable. `grad_placements`: the placements of its
    gradient, for ranks whose gradients of a Replicate are addends ([Partial()])."""
    return to_local(self, grad_placements)


def _full_tensor(self):
    """The whole tensor, plain, on every rank. Collective over the mesh. Differentiable."""
    return full_tensor(self)


def _redistribute(self, device_mesh=None, placements=None):
    """x.redistribute(placements), or x.redistribute(device_mesh, placements): the same tensor with other placements, or
    on another mesh of the same ranks. [Replicate()] alone stands for all dims of the mesh, since models that were
    written for one dim ask for the whole tensor so. Collective over the mesh. Differentiable."""
    if placements is None and isinstance(device_mesh, (list, tuple)):
        device_mesh, placements = None, device_mesh
    if placements is None:
        raise TypeError("redistribute: no placements are given\n  fix   x.redistribute([Replicate()])")
    placements = list(placements)
    if len(placements) == 1 and placements[0].is_replicate():
        placements *= (mesh_of(self) if device_mesh is None else device_mesh).ndim
    return redistribute(self, placements, device_mesh)


def _check_is_cut(tensor, name):
    """AttributeError for a plain tensor, so hasattr(plain, name) is False."""
    if not is_shard_tensor(tensor):
        raise AttributeError(
            f"'{type(tensor).__name__}' object has no attribute '{name}': it is a plain tensor\n"
            f"  have  shape {list(tensor.shape)}\n  fix   isinstance(x, ShardTensor) tells; distribute_tensor makes one"
        )


class _Method:
    """A method that only ShardTensors have."""

    def __init__(self, function):
        self.function, self.__doc__ = function, function.__doc__

    def __get__(self, tensor, owner=None):
        if tensor is None:
            return self.function
        _check_is_cut(tensor, self.function.__name__)
        return self.function.__get__(tensor)


def _property(name, function):
    def get(self):
        _check_is_cut(self, name)
        return function(self)

    return property(get, doc=function.__doc__)  # torch.overrides looks for property's __set__


for _name, _function in {"to_local": _to_local, "full_tensor": _full_tensor, "redistribute": _redistribute}.items():
    _function.__name__ = _name
    setattr(_torch.Tensor, _name, _Method(_function))
_torch.Tensor.placements = _property("placements", placements)
_torch.Tensor.device_mesh = _property("device_mesh", mesh_of)

# ---- Text ------------------------------------------------------------------------------------------------------------

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

# ---- Memory ----------------------------------------------------------------------------------------------------------


def _needs_memory(name):
    """torch.Tensor's method `name` reads memory: of a ShardTensor it is the copy that each rank has, or an error that
    names the remedy."""
    method = getattr(_torch.Tensor, name)

    @_functools.wraps(method)
    def checked(self, *args, **kwargs):
        if not is_shard_tensor(self):
            return method(self, *args, **kwargs)
        if all(placement.is_replicate() for placement in placements(self)):
            return method(to_local(self), *args, **kwargs)
        raise TypeError(
            f"{name}: a ShardTensor has no memory of its own but blocks on the ranks of its mesh\n"
            f"  have  shape {list(self.shape)}, placements {placements(self)}\n"
            f"  fix   full_tensor(x).{name}(...) on all ranks, or to_local(x).{name}(...) of this rank's block"
        )

    setattr(_torch.Tensor, name, checked)


for _name in ("numpy", "tolist", "data_ptr", "__array__", "__dlpack__"):
    _needs_memory(_name)

# ---- Copies and pickles ----------------------------------------------------------------------------------------------

_deepcopy_of_torch = _torch.Tensor.__deepcopy__
_reduce_of_torch = _torch.Tensor.__reduce_ex__


@_functools.wraps(_deepcopy_of_torch)
def _deepcopy(self, memo):
    """Of a ShardTensor: one with the same placements and memory of its own. It sends nothing. A leaf, as in PyTorch."""
    if not is_shard_tensor(self) or not self.is_leaf:
        return _deepcopy_of_torch(self, memo)
    if id(self) not in memo:
        with _torch.no_grad():
            new = self.detach().clone()
        new.requires_grad_(self.requires_grad)
        new.__dict__ = _copy.deepcopy(self.__dict__, memo)
        memo[id(self)] = new
        if self.grad is not None:
            new.grad = _copy.deepcopy(self.grad, memo)
    return memo[id(self)]


def _shallow_copy(self):
    """copy.copy: a tensor with the same memory."""
    if not is_shard_tensor(self):
        return _copy._reconstruct(self, None, *self.__reduce_ex__(4))
    if isinstance(self, _torch.nn.Parameter):
        return type(self)(self.detach(), self.requires_grad)
    return self.detach().requires_grad_(self.requires_grad)


@_functools.wraps(_reduce_of_torch)
def _reduce_ex(self, proto):
    """Pickles a ShardTensor as the whole plain tensor, for torch.save and pickle. Collective over the mesh."""
    if not is_shard_tensor(self):
        return _reduce_of_torch(self, proto)
    return full_tensor(self.detach()).requires_grad_(self.requires_grad).__reduce_ex__(proto)


_torch.Tensor.__deepcopy__ = _deepcopy
_torch.Tensor.__copy__ = _shallow_copy
_torch.Tensor.__reduce_ex__ = _reduce_ex

# ---- Hooks and optimizers --------------------------------------------------------------------------------------------

_hooks_of_torch = _torch.Tensor._backward_hooks


def _set_backward_hooks(self, hooks):
    """The first hook that is registered here replaces all others in the tensor: those that bring gradients into form
    stay."""
    _replace_hooks(self, lambda: _hooks_of_torch.__set__(self, hooks))


_torch.Tensor._backward_hooks = property(_hooks_of_torch.__get__, _set_backward_hooks)

_accumulated_of_torch = _torch.Tensor._post_accumulate_grad_hooks


def _set_accumulated_hooks(self, hooks):
    """The same for hooks that are called when a gradient has been added to: that of units, which reduces it, stays."""
    _replace_accumulated_hook(self, lambda: _accumulated_of_torch.__set__(self, hooks))


_torch.Tensor._post_accumulate_grad_hooks = property(_accumulated_of_torch.__get__, _set_accumulated_hooks)


def _before_step(optimizer, args, kwargs):
    """Gradients that are sums over ranks are reduced in few messages. Blocks may have been computed from a tensor that
    is no torch.nn.Parameter, whose gradients nobody sums over the ranks: that is an error."""
    _finish_grad_sync([parameter for group in optimizer.param_groups for parameter in group["params"]])


_register_step_pre_hook(_before_step)
