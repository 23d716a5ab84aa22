# SPDX-License-Identifier: Apache-2.0
"""torch.compile and forward mode, which need more than operators."""

import functools as _functools
import threading as _threading
import warnings as _warnings

import torch as _torch
from torch._functorch import eager_transforms as _eager_transforms
from torch.autograd import forward_ad as _forward_ad
from torch.utils import _pytree

from ._moonhalo import is_shard_tensor, mesh_of
from ._moonhalo import run_ranks as _run_ranks

# ---- torch.compile ---------------------------------------------------------------------------------------------------

_compile_of_torch = _torch.compile
_has_warned = _threading.Event()


def _tensors(module, args, kwargs):
    if module is not None:
        yield from module.parameters()
        yield from module.buffers()
    for value in _pytree.tree_leaves((args, kwargs)):
        if isinstance(value, _torch.Tensor):
            yield value


def _warn_once(tensor):
    if mesh_of(tensor).get_rank() == 0 and not _has_warned.is_set():
        _has_warned.set()
        _warnings.warn("torch.compile: ShardTensors are not compiled, so this runs eagerly (warned once)", stacklevel=3)


def _eager_for_shard_tensors(compiled, eager, module):
    """Calls `compiled`, or `eager` where a ShardTensor is among the arguments or the module's parameters."""

    @_functools.wraps(compiled)
    def call(*args, **kwargs):
        if not _torch.compiler.is_compiling():  # within another compiled function
            cut = next((one for one in _tensors(module, args, kwargs) if is_shard_tensor(one)), None)
            if cut is not None:
                _warn_once(cut)
                return eager(*args, **kwargs)
        return compiled(*args, **kwargs)

    return call


@_functools.wraps(_compile_of_torch)
def _compile(model=None, *args, **kwargs):
    compiled = _compile_of_torch(model, *args, **kwargs)
    if model is None:  # a decorator, which calls torch.compile again
        return compiled
    if isinstance(compiled, _torch.nn.Module):
        compiled.forward = _eager_for_shard_tensors(compiled.forward, model, model)
        return compiled
    owner = getattr(model, "__self__", None)  # of module.compile()
    return _eager_for_shard_tensors(compiled, model, owner if isinstance(owner, _torch.nn.Module) else None)


_torch.compile = _compile

# ---- Forward mode ----------------------------------------------------------------------------------------------------

_thread = _threading.local()


def run_ranks(ranks, fn, *args, threads_per_rank=0):
    """Calls fn(world, *args) on `ranks` ranks, which are threads of this process, and returns when all have ended. An
    error of one rank ends all of them and is raised with its own type. `threads_per_rank`: threads of PyTorch for each
    (0: cores / ranks). Not collective: one thread calls it."""

    def rank(world, *arguments):
        _thread.ranks = world.size
        return fn(world, *arguments)

    _run_ranks(ranks, rank, *args, threads_per_rank=threads_per_rank)


def _in_processes_alone(function, who):
    """PyTorch has one level of forward mode for the whole process: one thread rank would end the level of another."""

    @_functools.wraps(function)
    def checked(*args, **kwargs):
        if getattr(_thread, "ranks", 1) > 1:
            raise NotImplementedError(
                f"{who}: PyTorch has one level of forward mode for each process, which ranks that are threads would"
                f" share\n  have  {_thread.ranks} ranks as threads\n  fix   one process for each rank (mpirun,"
                " torchrun), or torch.autograd.functional.jvp"
            )
        return function(*args, **kwargs)

    return checked


_forward_ad.enter_dual_level = _in_processes_alone(_forward_ad.enter_dual_level, "forward_ad.dual_level")
_eager_transforms.jvp_increment_nesting = _in_processes_alone(_eager_transforms.jvp_increment_nesting, "torch.func.jvp")
