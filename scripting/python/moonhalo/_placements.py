# SPDX-License-Identifier: Apache-2.0
"""Shard, Stored, Replicate and Partial: functions that make a Placement, and classes for isinstance."""

from ._moonhalo import Placement, _partial, _replicate, _shard, _stored


class _Kind(type):
    def __instancecheck__(cls, value):
        return isinstance(value, Placement) and cls._has(value)


class Shard(metaclass=_Kind):
    """Shard(dim, sizes=[]): tensor dim `dim` is cut into one block for each rank. `sizes` has the rows of each block,
    which may be uneven and 0; without it the blocks are balanced."""

    _has = staticmethod(Placement.is_shard)

    def __new__(cls, dim, sizes=()):
        return _shard(dim, list(sizes))


class Stored(metaclass=_Kind):
    """Stored(dim, sizes=[]): like Shard, to save memory alone (fully_shard): operators gather the tensor and move no
    other."""

    _has = staticmethod(lambda placement: placement.is_stored)

    def __new__(cls, dim, sizes=()):
        return _stored(dim, list(sizes))


class Replicate(metaclass=_Kind):
    """Replicate(): every rank has the whole tensor."""

    _has = staticmethod(Placement.is_replicate)

    def __new__(cls):
        return _replicate()


class Partial(metaclass=_Kind):
    """Partial(op="sum"): every rank has an addend; `op` may also be "avg", "max", "min" or "product"."""

    _has = staticmethod(Placement.is_partial)

    def __new__(cls, op="sum"):
        return _partial(op)
