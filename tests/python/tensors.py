# SPDX-License-Identifier: Apache-2.0
"""Methods, copies and pickles of ShardTensors, and meshes, as programs for DTensor use them (Y05)."""

import copy
import io
import pickle

import moonhalo as mh
import torch
import torch.distributed.tensor as dtensor
from blocks import rows_of
from refusals import refused
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

FULL = torch.arange(22, dtype=torch.float64).reshape(11, 2)
ROWS = [5, 0, 6]


def methods(mesh, expect):
    x = mh.distribute_tensor(FULL, mesh, [mh.Shard(0, ROWS)]).requires_grad_()
    begin = sum(ROWS[: mesh.rank])
    mine = FULL[begin : begin + ROWS[mesh.rank]]
    expect(
        isinstance(x, mh.ShardTensor) and isinstance(torch.nn.Parameter(x.detach()), mh.ShardTensor), "a ShardTensor"
    )
    expect(not isinstance(FULL, mh.ShardTensor) and not isinstance(3, mh.ShardTensor), "no ShardTensor")
    expect(x.placements == [mh.Shard(0, ROWS)] and x.device_mesh is mesh, "placements, device_mesh")
    expect(torch.equal(x.to_local(), mine) and torch.equal(x.full_tensor(), FULL), "to_local, full_tensor")
    whole = x.redistribute([mh.Replicate()])
    expect(torch.equal(x.redistribute(mesh, [mh.Shard(1)]).full_tensor(), FULL), "redistribute, of another mesh")
    expect(torch.equal(x.redistribute(placements=[mh.Shard(1)]).full_tensor(), FULL), "redistribute, by name")
    expect(
        torch.equal(mh.ShardTensor.from_local(mine, mesh, [mh.Shard(0)]).full_tensor(), FULL), "ShardTensor.from_local"
    )
    expect(
        not any(
            hasattr(FULL, name) for name in ("to_local", "full_tensor", "redistribute", "placements", "device_mesh")
        ),
        "plain",
    )
    whole = x.redistribute(placements=[dtensor.Replicate()])
    expect(whole.placements == [mh.Replicate()] and torch.equal(whole.to_local(), FULL), "PyTorch's Replicate")
    ones = mh.from_local(torch.ones(2), mesh, [dtensor.Partial("sum")])
    expect(torch.equal(ones.full_tensor(), torch.full((2,), 3.0)), "PyTorch's Partial")
    expect(mh.distribute_tensor(FULL, mesh, (dtensor.Shard(1),)).placements[0].is_shard(1), "PyTorch's Shard")
    refused(
        expect,
        "a number as a placement",
        TypeError,
        ["Placement: a int is not a placement", "fix"],
        lambda: mh.Placement(3),
    )
    refused(expect, "a plain tensor", AttributeError, ["plain tensor", "fix"], lambda: FULL.to_local())
    refused(expect, "ShardTensor()", TypeError, ["distribute_tensor", "fix"], lambda: mh.ShardTensor(FULL))
    refused(expect, "redistribute()", TypeError, ["no placements", "fix"], lambda: x.redistribute())
    (x.full_tensor() * FULL).sum().backward()
    expect(torch.equal(x.grad.full_tensor(), FULL), "gradient of full_tensor")
    # Each rank's block of a Replicate: its gradients are addends.
    y = mh.distribute_tensor(FULL, mesh, [mh.Replicate()]).requires_grad_()
    (y.to_local(grad_placements=[mh.Partial()]) * (1 + mesh.rank)).sum().backward()
    expect(torch.equal(y.grad.full_tensor(), torch.full_like(FULL, 6)), "grad_placements")

    whole = whole.detach()
    expect(
        whole.tolist() == FULL.tolist() and whole.data_ptr() == whole.to_local().data_ptr() > 0, "memory of a Replicate"
    )
    expect(torch.equal(torch.from_dlpack(whole), FULL), "__dlpack__ of a Replicate")
    try:
        import numpy

        expect(
            numpy.array_equal(whole.numpy(), FULL.numpy()) and numpy.asarray(whole).shape == (11, 2),
            "numpy of a Replicate",
        )
    except ImportError:
        pass
    refused(expect, "tolist of a sum", TypeError, ["full_tensor(x).tolist", "fix"], lambda: x.detach().sum().tolist())


def on_a_grid(mesh, expect):
    """A model that was written for meshes of one dim asks for the whole tensor by one Replicate()."""
    grid = mh.init_device_mesh(mesh.get_group(0), "cpu", [3, 1])
    on_grid = mh.distribute_tensor(FULL, grid, [mh.Shard(0, ROWS), mh.Shard(1)])
    for replicate in (mh.Replicate(), dtensor.Replicate()):
        everywhere = on_grid.redistribute(placements=[replicate])
        expect(everywhere.placements == [mh.Replicate()] * 2, "[Replicate()] stands for all dims of the mesh")
        expect(torch.equal(everywhere.to_local(), FULL), "redistribute on a grid")
    refused(
        expect,
        "one placement on a grid",
        ValueError,
        ["1 placements", "2 dim"],
        lambda: on_grid.redistribute([mh.Shard(0)]),
    )


def placements(expect):
    cut, sum_ = mh.Shard(0, [2, 1]), mh.Partial("max")
    expect(isinstance(cut, mh.Shard) and isinstance(cut, mh.Placement) and not isinstance(cut, mh.Replicate), "Shard")
    expect(isinstance(sum_, mh.Partial) and sum_.reduce_op == "max" and not isinstance(sum_, mh.Shard), "Partial")
    expect(
        isinstance(mh.Stored(0), mh.Stored) and isinstance(mh.Stored(0), mh.Shard) and not isinstance(cut, mh.Stored),
        "Stored",
    )
    expect(
        cut.is_shard() and cut.is_shard(0) and not cut.is_shard(1) and cut.dim == 0 and cut.sizes == [2, 1], "is_shard"
    )
    expect(cut == mh.Shard(0, [2, 1]) != mh.Shard(0) and {cut: 1}[mh.Shard(0, [2, 1])] == 1 and cut != 3, "equality")
    expect(copy.deepcopy(cut) == cut and not isinstance(0, mh.Shard), "copy of a placement")


def meshes(world, mesh, expect):
    expect(
        mesh.ndim == 1
        and mesh.mesh_dim_names == ("rows",)
        and mesh.device_type == "cpu"
        and mesh.get_coordinate() == [world.rank],
        "mesh",
    )
    expect(mesh.get_local_rank() == mesh.get_local_rank("rows") == mesh.get_rank() == world.rank, "ranks of a mesh")
    group = mesh.get_group()
    expect(
        group.size == 3
        and group.rank == world.rank
        and mesh.get_group(0).size == 3 == mesh.size("rows") == mesh.size(-1),
        "groups",
    )
    grid = mh.init_device_mesh(world, "cpu", [3, 1], ["domain", "data"])
    expect(grid["domain"].size() == 3 and grid["data"].size() == 1 and grid["domain", "data"].shape == [3, 1], "slices")
    expect(grid["domain"] is grid["domain"] and grid["data"].get_rank() == world.rank, "a slice is one object")
    expect([one.size for one in grid.get_all_groups()] == [3, 1], "get_all_groups")
    refused(expect, "a dim of several", ValueError, ["2 dims", "fix"], lambda: grid.get_group())
    refused(expect, "a dim that is not there", (IndexError, ValueError), ["out of range", "fix"], lambda: grid.size(2))
    expect(copy.deepcopy(grid) is grid and copy.deepcopy(world) is world, "a copy of a mesh is the mesh")


def stats_of(expect, mesh, world):
    before = world.comm_stats()
    x = mh.distribute_tensor(FULL, mesh, [mh.Shard(0, ROWS)])
    x.full_tensor()
    after = world.comm_stats()
    expect(
        after["by_kind"]["all_gather"]["calls"] + after["by_kind"]["exchange"]["calls"]
        > before["by_kind"]["all_gather"]["calls"] + before["by_kind"]["exchange"]["calls"]
        and after["calls"] > before["calls"],
        f"comm_stats: {before} {after}",
    )
    (x * 2).sum().item()
    expect(after["waited"] >= before["waited"] >= 0 and (world.size == 1 or after["waited"] > 0), "comm_stats, waited")
    expect(world.comm_stats(reset=True)["by_operator"]["aten::mul.Tensor"]["calls"] >= 1, "comm_stats by operator")
    expect(world.comm_stats()["by_operator"] == {}, "comm_stats, reset")
    expect(world.comm_stats()["waited"] == 0, "comm_stats, waited after reset")


class Masked(torch.nn.Module):
    def __init__(self, mesh):
        super().__init__()
        cut = [mh.Shard(0, rows_of(mesh, ROWS))]
        self.weight = torch.nn.Parameter(mh.distribute_tensor(FULL, mesh, cut))
        self.register_buffer("mask", mh.distribute_tensor(1 + FULL, mesh, cut))
        self.tied = self.weight

    def forward(self, x):
        return (self.weight * self.mask * x).tanh()


def copies(mesh, expect):
    net = Masked(mesh)
    net(0.1).sum().backward()
    for what, new in {"deepcopy": copy.deepcopy(net), "AveragedModel": AveragedModel(net).module}.items():
        expect(
            new.weight.placements == net.weight.placements and new.mask.placements == net.mask.placements,
            f"{what}: placements",
        )
        expect(
            isinstance(new.weight, torch.nn.Parameter) and new.weight.requires_grad and new.tied is new.weight,
            f"{what}: parameter",
        )
        with torch.no_grad():
            new.weight.zero_()
            new.mask.zero_()
        expect(
            torch.equal(net.weight.full_tensor(), FULL) and torch.equal(net.mask.full_tensor(), 1 + FULL),
            f"{what}: own memory",
        )
    leaf = mh.distribute_tensor(FULL, mesh, [mh.Shard(1)]).requires_grad_()
    leaf.square().sum().backward()
    leaf.note = ["kept"]
    first, second = copy.deepcopy([leaf, leaf])
    expect(
        first is second and first.requires_grad and first.grad is not leaf.grad and first.note == ["kept"] != [],
        "deepcopy of a leaf",
    )
    expect(torch.equal(first.grad.full_tensor(), 2 * FULL) and first.note is not leaf.note, "deepcopy of a gradient")
    total = leaf.detach().sum(0, keepdim=True)
    expect(torch.equal(copy.deepcopy(total).full_tensor(), FULL.sum(0, keepdim=True)), "deepcopy of a sum")
    shallow = copy.copy(leaf)
    with torch.no_grad():
        shallow.zero_()
    expect(torch.equal(leaf.full_tensor(), 0 * FULL) and torch.equal(copy.copy(FULL), FULL), "copy.copy")
    try:
        copy.deepcopy(leaf * 2)
        expect(False, "deepcopy of a result is refused, as in PyTorch")
    except RuntimeError as error:
        expect("graph leaves" in str(error), f"deepcopy of a result: {error}")


def averages(mesh, expect):
    """EMA of a model with ShardTensors, beside the same of plain tensors."""
    net, plain = Masked(mesh), torch.nn.Linear(2, 11, bias=False).double()
    with torch.no_grad():
        plain.weight.copy_(FULL)
    models = [AveragedModel(one, multi_avg_fn=get_ema_multi_avg_fn(0.75)) for one in (net, plain)]
    for step in range(3):
        for one, average in zip((net, plain), models):
            with torch.no_grad():
                one.weight.mul_(0.5).add_(step)
            average.update_parameters(one)
    expect(torch.allclose(models[0].module.weight.full_tensor(), models[1].module.weight, rtol=1e-12), "EMA")


def pickles(mesh, expect):
    net, optimizer_of = Masked(mesh), lambda one: torch.optim.Adam(one.parameters(), lr=0.1)
    optimizer = optimizer_of(net)
    net(0.1).sum().backward()
    optimizer.step()
    stored = io.BytesIO()
    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, stored)
    stored.seek(0)
    saved = torch.load(stored)
    expect(
        all(type(one) is torch.Tensor and not isinstance(one, mh.ShardTensor) for one in saved["net"].values()),
        "torch.save: plain",
    )
    expect(torch.equal(saved["net"]["weight"], net.weight.full_tensor().detach()), "torch.save: values")
    moment = saved["optimizer"]["state"][0]["exp_avg"]
    expect(
        torch.equal(moment, optimizer.state[net.weight]["exp_avg"].full_tensor()), "torch.save: states of an optimizer"
    )
    # Into another model with other blocks; both then train in the same way.
    new = Masked(mesh)
    new.weight = new.tied = torch.nn.Parameter(mh.distribute_tensor(0 * FULL, mesh, [mh.Shard(1)]))
    again = optimizer_of(new)
    again.load_state_dict(saved["optimizer"])
    expect(
        new.load_state_dict(saved["net"]).missing_keys == [] and new.weight.placements[0].is_shard(1), "load_state_dict"
    )
    for one, steps in ((net, optimizer), (new, again)):
        steps.zero_grad()
        one(0.1).sum().backward()
        steps.step()
    expect(
        torch.allclose(new.weight.full_tensor(), net.weight.full_tensor(), rtol=1e-12),
        "load_state_dict of an optimizer",
    )
    whole = pickle.loads(pickle.dumps(net))
    expect(
        type(whole.weight) is torch.nn.Parameter and whole.weight is whole.tied and whole.weight.requires_grad,
        "pickle of a module",
    )
    expect(torch.equal(whole.mask, 1 + FULL) and not isinstance(whole.weight, mh.ShardTensor), "pickle of a buffer")


def rank(world, mesh, expect):
    methods(mesh, expect)
    on_a_grid(mesh, expect)
    placements(expect)
    meshes(world, mesh, expect)
    stats_of(expect, mesh, world)
    copies(mesh, expect)
    averages(mesh, expect)
    pickles(mesh, expect)
