# SPDX-License-Identifier: Apache-2.0
"""Casts in the places of parameters while the forward of a unit of fully_shard runs (mp_policy.param_dtype).

A segment of torch.utils.checkpoint runs again in backward, outside of the forwards that it was in. It uses the casts
that it used there, so both ways of PyTorch to keep its function are changed to keep them with it."""

import functools as _functools
import threading as _threading

from torch.utils import checkpoint as _checkpoint


class _Thread(_threading.local):
    def __init__(self):
        self.under_way = []  # (registry, name, cast) of all units whose forward runs, the outer ones first


_thread = _Thread()


class InPlaces:
    """Puts casts in the places of parameters until `restore`."""

    def __init__(self):
        self.outer = len(_thread.under_way)
        self.parameters = []

    def put(self, registry, name, cast):
        self.parameters.append((registry, name, registry[name]))
        _thread.under_way.append((registry, name, cast))
        registry[name] = cast

    def restore(self):
        del _thread.under_way[self.outer :]
        for registry, name, parameter in reversed(self.parameters):  # a shared registry is in the list twice
            registry[name] = parameter


def _bound(function):
    """A function that runs `function` with the casts of this moment."""
    if not _thread.under_way:
        return function
    casts = list(_thread.under_way)

    @_functools.wraps(function)
    def call(*args, **kwargs):
        placed = InPlaces()
        try:
            for one in casts:
                placed.put(*one)
            return function(*args, **kwargs)
        finally:
            placed.restore()

    return call


def _with_casts(keep):
    @_functools.wraps(keep)
    def call(first, function, *args, **kwargs):
        return keep(first, _bound(function), *args, **kwargs)

    return call


_checkpoint._CheckpointFrame.__init__ = _with_casts(_checkpoint._CheckpointFrame.__init__)
_checkpoint.CheckpointFunction.forward = staticmethod(_with_casts(_checkpoint.CheckpointFunction.forward))
