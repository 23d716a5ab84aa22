# SPDX-License-Identifier: Apache-2.0
"""Data sets in files, windows in time, loaders: the data layer of docs/data.md, which is written in Lua.

    data = mh.data.open(world, "era5/t2m_*.nc")
    windows = data.windows(inputs={"fields": ["t2m"], "steps": [-1, 0]}, targets={"fields": ["t2m"], "steps": [1]})
    train, valid = windows.split(train=["1979", "2015"], valid=["2016", "2018"])
    loader = train.loader(mesh=mesh, cut={"latitude": "domain"}, batch=16, shuffle=True, missing={"fill": 0})
    for batch in loader:                     # the rest of an epoch: {"inputs": ..., "targets": ..., "times": [...]}
        loss = F.mse_loss(net(batch["inputs"]), batch["targets"])

Names, options and errors are those of docs/data.md: `data:windows{...}` is `data.windows(...)`, a table is a dict or a
list, nil is None. Lists have Python's indices, from 0. `len(loader)` is its number of batches, `loader.epoch` is its
epoch.
A loader is an entry of save_checkpoint. An option that is a function, as transform, is a function of Python. Objects
belong to the thread, and so to the rank, that has opened the data set. Errors are ValueError."""

from ._moonhalo import _LuaObject, _open_data

__all__ = ["from_tensors", "open"]


def _iterate(self):
    """The batches of a loader or a sampler; or what a function of Lua gives, until it gives None."""
    step = self.batches() if hasattr(self, "batches") else self
    while (item := step()) is not None:
        yield item


_LuaObject.__iter__ = _iterate


def open(world, paths, **options):
    """Opens a data set: a path, a pattern, a folder or a list of them. Collective over `world`.

    options   those of mh.data.open in docs/data.md: layout, dims, join, may_differ, space, axis, dates, ...

    Returns a collection: fields, steps, `windows(inputs=, targets=, static=)`; print it. ValueError for files that do
    not fit together, on every rank."""
    return _open_data(world)["open"](paths, **options)


def from_tensors(world, tensors, **options):
    """Makes a data set of plain tensors, {"u": tensor, ...}, which are the same on all ranks. Collective over `world`.

    options   dims: the names of their dims, ["time", "y", "x"]"""
    return _open_data(world)["from_tensors"](tensors, **options)
