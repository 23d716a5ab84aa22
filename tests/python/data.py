# SPDX-License-Identifier: Apache-2.0
"""The data layer as Python sees it: batches on blocks against slices of one tensor, functions of Python as options,
errors, a loader that goes on from a checkpoint (Y05)."""

import gc
import threading
import weakref

import moonhalo as mh
import torch
from refusals import refused

FULL = torch.arange(12 * 11 * 4, dtype=torch.float64).sin().reshape(12, 11, 4)
ROWS = [5, 0, 6]
INPUTS, TARGETS = {"fields": ["u"], "steps": [-1, 0]}, {"fields": ["u"], "steps": [1]}


def loader_of(data, mesh, **options):
    windows = data.windows(inputs=INPUTS, targets=TARGETS)
    return windows.loader(mesh=mesh, cut={"y": ["rows", ROWS]}, batch=4, dtype="float64", **options)


def batches(mesh, data, expect):
    loader = loader_of(data, mesh)
    expect(len(loader) == 3 and loader.epoch == 0 and "Loader of 10 samples" in repr(loader), f"{loader!r}")
    seen = 0
    for batch in loader:
        x, y, index = batch["inputs"], batch["targets"], batch["index"].tolist()
        expect(isinstance(x, mh.ShardTensor) and x.placements == [mh.Shard(2, ROWS)], f"placements: {x.placements}")
        wanted = torch.stack([FULL[[i, i + 1]] for i in index])
        expect(torch.equal(x.full_tensor(), wanted), f"inputs of {index}")
        expect(torch.equal(y.full_tensor(), torch.stack([FULL[[i + 2]] for i in index])), f"targets of {index}")
        seen += len(index)
    expect(seen == 10 and loader.epoch == 1, f"{seen} samples, epoch {loader.epoch}")
    # After a break it goes on; a gradient flows through what the network makes of a batch.
    for batch in loader:
        weight = torch.nn.Parameter(torch.ones(1, 2, 3, 3, dtype=torch.float64))
        torch.nn.functional.conv2d(batch["inputs"], weight, padding=1).square().mean().backward()
        expect(weight.grad is not None and bool(weight.grad.isfinite().all()), "a gradient")
        break
    expect([batch["index"].tolist()[0] for batch in loader] == [4, 8], "the rest of an epoch")
    plain = data.windows(inputs=INPUTS).loader(batch=5, dtype="float64")
    expect(torch.equal(next(iter(plain))["inputs"], torch.stack([FULL[i : i + 2] for i in range(5)])), "plain batches")


def options(world, mesh, data, expect):
    calls = []

    def twice(batch, place):
        calls.append(sorted(place))
        return {**batch, "inputs": 2 * batch["inputs"]}

    batch = next(iter(loader_of(data, mesh, transform=twice)))
    index = batch["index"].tolist()
    wanted = 2 * torch.stack([FULL[[i, i + 1]] for i in index])
    expect(calls and torch.equal(batch["inputs"].full_tensor(), wanted), f"transform: {calls}")
    first, second = data.windows(inputs=INPUTS).split(first=0.6, second=0.4)
    expect(len(first) + len(second) > 0 and first.fields() == ["u"], f"split: {first!r} {second!r}")

    def fails(batch, place):
        raise KeyError("mine")

    failing = lambda: next(iter(loader_of(data, mesh, transform=fails)))
    refused(expect, "an error in transform", KeyError, "mine", failing)
    refused(expect, "a misspelt option", ValueError, "shuffle", lambda: loader_of(data, mesh, shufle=True))
    refused(expect, "a misspelt field", ValueError, "'v'", lambda: data.windows(inputs={"fields": ["v"]}))
    refused(expect, "no such method", AttributeError, "windows", lambda: data.window)
    refused(expect, "a set", TypeError, "cannot be passed", lambda: data.windows(inputs={1, 2}))
    for name, key in {"None": None, "NaN": float("nan")}.items():
        keyed = {**INPUTS, key: 1}
        refused(expect, f"the key {name}", ValueError, f"key of a dict is {name}", lambda: data.windows(inputs=keyed))
    endless = ["u"]
    endless.append(endless)
    within = {"fields": endless, "steps": [0]}
    refused(expect, "a list in itself", ValueError, "more than 100 deep", lambda: data.windows(inputs=within))
    other = mh.data.from_tensors(world, {"u": FULL}, dims=["time", "y", "x"])
    refused(expect, "two data sets", ValueError, "another data set", lambda: data.windows(inputs=other))
    problems = []

    def elsewhere():
        try:
            data.windows(inputs=INPUTS)
        except ValueError as error:
            problems.append(str(error))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    expect(problems and "another thread" in problems[0], f"on another thread: {problems}")


class Marker:
    """Is freed with whatever refers to it."""


def mark_of_a_cycle(world):
    """A transform that refers to its own data set, to a method of it and to its loader; and a marker."""
    marker, kept = Marker(), []
    data = mh.data.from_tensors(world, {"u": FULL}, dims=["time", "y", "x"])
    method = data.windows

    def transform(batch, place):
        return batch if (marker, data, method, kept) else None

    kept.append(method(inputs=INPUTS).loader(batch=4, transform=transform))
    next(iter(kept[0]))
    return weakref.ref(marker)


def freed(world, expect):
    marker = mark_of_a_cycle(world)
    world.barrier()
    if world.rank == 0 or world.backend != "threads":  # a second collector in a process does nothing
        gc.collect()
    world.barrier()
    expect(marker() is None, "a transform that refers to its data set is freed")


def files(world, mesh, expect, work):
    if world.rank == 0:
        file = mh.open(str(work / "u.nc"), "w")
        days = torch.arange(12, dtype=torch.float64)
        file.write("time", days, dims=["time"], attrs={"units": "days since 2000-01-01"})
        file.write("u", FULL, dims=["time", "y", "x"])
        file.close()
    world.barrier()
    data = mh.data.open(world, work / "u.nc")
    expect(data.steps == 12, f"{data!r}")
    loader = loader_of(data, mesh, shuffle=True, seed=3)
    orders = [batch["index"].tolist() for batch in loader] + [batch["index"].tolist() for batch in loader]
    loader = loader_of(data, mesh, shuffle=True, seed=3)
    next(iter(loader))
    mh.save_checkpoint(world, work / "loader", {"data": loader, "step": 1})
    other = loader_of(data, mesh, shuffle=True, seed=5)
    mh.load_checkpoint(world, work / "loader", {"data": other, "step": 0})
    rest = [batch["index"].tolist() for batch in other] + [batch["index"].tolist() for batch in other]
    expect(rest == orders[1:] and sorted(sum(orders[:3], [])) == list(range(10)), f"a loader goes on: {rest} {orders}")
    refused(expect, "no file", ValueError, "nowhere.nc", lambda: mh.data.open(world, work / "nowhere.nc"))


def rank(world, mesh, expect, work):
    data = mh.data.from_tensors(world, {"u": FULL}, dims=["time", "y", "x"])
    batches(mesh, data, expect)
    freed(world, expect)
    options(world, mesh, data, expect)
    del data
    gc.collect()
    files(world, mesh, expect, work)
