# SPDX-License-Identifier: Apache-2.0
"""A ShardTensor under PyTorch, against the same on one plain tensor (X15): over 3 rank threads, or one process each
with `mpi`. usage: ranks.py FOLDER_OF_THE_MODULE [mpi EMPTY_FOLDER]"""

import sys
import tempfile
import threading
from pathlib import Path

sys.path.insert(0, sys.argv[1])
import data
import files
import front
import hooks
import loops
import modules
import moonhalo as mh
import recompute
import rules
import settings
import tensors
import torch
import torch.nn.functional as F
import transforms

ROWS = 11
CUTS = {"uneven": [5, 2, 4], "one empty": [7, 0, 4], "even": []}
failures = []


def expect(condition, what):
    if not condition:
        failures.append(what)


def close(a, b):
    return torch.allclose(a, b, rtol=1e-10, atol=1e-12)


class Net(torch.nn.Module):
    """Convolutions that reach over borders of blocks, a norm, attention over columns, a loss."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(2, 4, 3, padding=1)
        self.norm = torch.nn.GroupNorm(2, 4)
        self.second = torch.nn.Conv2d(4, 2, 5, padding=2)

    def forward(self, x):
        return x + self.second(F.gelu(self.norm(self.first(x))))


def net_of(seed):
    generator = torch.Generator().manual_seed(seed)
    net = Net().double()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3)
    return net


def train(net, x, steps):
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), 0.5 * x.detach())
        loss.backward()
        optimizer.step()
        losses.append(loss)
    return losses


def compare(world, mesh, name, sizes):
    full = torch.arange(2 * 2 * ROWS * 6, dtype=torch.float64).sin().reshape(2, 2, ROWS, 6)
    cut = [mh.Shard(2, sizes)]
    x = mh.scatter_tensor(full if world.rank == 0 else None, mesh, cut)
    rows = (sizes or mh.placements(x)[0].sizes or [4, 4, 3])[world.rank]
    expect(type(x) is torch.Tensor and mh.is_shard_tensor(x) and not mh.is_shard_tensor(full), f"{name}: type")
    expect(tuple(x.shape) == tuple(full.shape) and mh.to_local(x).shape[2] == rows, f"{name}: shape")
    expect(mh.placements(x)[0].dim == 2 and mh.mesh_of(x).size() == 3, f"{name}: placement")
    expect(torch.equal(mh.full_tensor(x), full), f"{name}: full_tensor")
    expect(
        torch.equal(mh.full_tensor(mh.from_local(mh.to_local(x) * 2, mesh, [mh.Shard(2)])), 2 * full),
        f"{name}: from_local",
    )
    expect(torch.equal(mh.to_local(mh.redistribute(x, [mh.Replicate()])), full), f"{name}: redistribute")

    x = x.detach().requires_grad_()
    plain = full.clone().requires_grad_()
    (torch.softmax(x, 2) * x.amax(2, keepdim=True)).square().sum().backward()
    (torch.softmax(plain, 2) * plain.amax(2, keepdim=True)).square().sum().backward()
    expect(close(mh.full_tensor(x.grad), plain.grad), f"{name}: gradient")

    cut_losses, plain_losses = train(net_of(1), x, 3), train(net_of(1), plain, 3)
    for mine, theirs in zip(cut_losses, plain_losses):
        expect(close(mh.full_tensor(mine.detach()), theirs.detach()), f"{name}: loss")
    ours, whole = net_of(2), net_of(2)
    ours(x).square().mean().backward()
    whole(plain).square().mean().backward()
    for mine, theirs in zip(ours.parameters(), whole.parameters()):
        expect(close(mine.grad, theirs.grad), f"{name}: gradient of a weight")


def own_operators(mesh):
    expect(mh.ops is torch.ops.moonhalo and hasattr(mh.ops, "neighborhood_attention"), "operators")
    q = torch.arange(1 * ROWS * 2 * 4, dtype=torch.float64).cos().reshape(1, ROWS, 2, 4)
    cut = mh.distribute_tensor(q, mesh, [mh.Shard(1, CUTS["uneven"])])
    call = lambda t: mh.ops.neighborhood_attention(t, t, t, [3])[0]
    expect(close(mh.full_tensor(call(cut)), call(q)), "an operator of Moonhalo's")


def values_in_python(mesh):
    """Numbers and shapes that depend on values: PyTorch's kernels without data, written in Python, cannot tell them."""
    full = torch.arange(ROWS * 2, dtype=torch.float64).sin().reshape(ROWS, 2)
    x = mh.distribute_tensor(full, mesh, [mh.Shard(0, CUTS["one empty"])])
    expect(abs(x.sum().item() - full.sum().item()) < 1e-12 and f"{x.sum():.6f}" == f"{full.sum():.6f}", "item")
    expect(bool((x > 0).any()) and torch.allclose(x, x * 1) and not torch.equal(x, x + 1), "truth")
    whole = lambda t: mh.full_tensor(t) if mh.is_shard_tensor(t) else t
    for name, of in {
        "nonzero": lambda t: (t > 0).nonzero(),
        "mask": lambda t: t[t > 0],
        "unique": lambda t: t.round().unique(),
    }.items():
        expect(torch.equal(whole(of(x)), of(full)), name)


def text(world, mesh):
    """One rank alone prints: its block, and nothing is sent."""
    x = mh.distribute_tensor(torch.arange(12.0, dtype=torch.float64).reshape(6, 2), mesh, [mh.Shard(0, [3, 2, 1])])
    leaf, total = x.detach().requires_grad_(), x.sum()
    result = leaf * 2
    facts = "placements=[Shard(0, {3, 2, 1})], mesh=mesh(3: rows)"
    wanted = (
        f"ShardTensor(shape=[6, 2], {facts},\n  local=tensor([[6., 7.],\n                [8., 9.]],"
        " dtype=torch.float64))"
    )
    world.barrier()
    if world.rank == 1:
        sent = world.bytes_sent()
        expect(repr(x) == wanted and str(x) == wanted and f"{x}" == wanted and repr([x]) == f"[{wanted}]", f"repr: {x}")
        expect(repr(leaf) == wanted.replace(facts, facts + ", requires_grad=True"), f"repr of a leaf: {leaf}")
        expect(
            repr(result).startswith(f"ShardTensor(shape=[6, 2], {facts}, grad_fn=<MulBackward0>,\n"),
            f"repr of a result: {result}",
        )
        expect(repr(total).startswith("ShardTensor(shape=[], placements=[Partial(sum)], "), f"repr of a sum: {total!r}")
        expect(repr(torch.nn.Parameter(x)).startswith("Parameter containing:\nShardTensor("), "repr of a parameter")
        expect(repr(torch.ones(2)) == "tensor([1., 1.])", "repr of a plain tensor")
        expect(world.bytes_sent() == sent, "repr sends nothing")
    world.barrier()


def memory(world, mesh):
    """What reads memory names the two ways to some: on this rank alone, without a message. Plain tensors are as
    ever."""
    x = mh.from_local(torch.ones(2, 3), mesh, [mh.Shard(0)])
    for name, call in {
        "numpy": torch.Tensor.numpy,
        "tolist": torch.Tensor.tolist,
        "data_ptr": torch.Tensor.data_ptr,
        "__array__": torch.Tensor.__array__,
        "__dlpack__": lambda t: t.__dlpack__(),
    }.items():
        if world.rank != 0:
            continue
        try:
            call(x)
            expect(False, f"{name} of a ShardTensor is refused")
        except TypeError as error:
            lines = str(error).split("\n")
            expect(
                lines[0] == f"{name}: a ShardTensor has no memory of its own but blocks on the ranks of its mesh",
                f"{name}: {error}",
            )
            expect(
                lines[1] == f"  have  shape [{2 * world.size}, 3], placements {mh.placements(x)}", f"{name}: {error}"
            )
            expect(f"full_tensor(x).{name}" in lines[2] and f"to_local(x).{name}" in lines[2], f"{name}: {error}")
    expect(mh.full_tensor(x).tolist() == [[1.0] * 3] * (2 * world.size), "tolist of the whole")
    block = mh.to_local(x)
    expect(block.data_ptr() > 0 and block.detach().tolist() == [[1.0] * 3] * 2, "the memory of a block")
    expect(
        torch.ones(2).tolist() == [1.0, 1.0] and torch.Tensor.tolist.__doc__.strip().startswith("tolist()"),
        "plain tensors",
    )


def errors(world, mesh):
    for fails, kind, text in (
        (lambda: mh.scatter_tensor(torch.ones(4), mesh, [mh.Shard(3)]), (IndexError, ValueError), "3"),
        (lambda: mh.full_tensor(torch.ones(3)), TypeError, "not a ShardTensor"),
        (lambda: mh.Partial("sun"), ValueError, "sun"),
        (lambda: mh.init_device_mesh(world, "cpu", [7]), ValueError, "7"),
    ):
        try:
            fails()
            expect(False, f"no error with {text}")
        except kind as error:
            expect(text in str(error) and "frame #" not in str(error), f"error: {error}")


def rank(world, folder):
    mesh = mh.init_device_mesh(world, "cpu", [3], ["rows"])
    expect(world.size == 3 and mesh.coordinate("rows") == world.rank and mesh["rows"].size() == 3, "mesh")
    for name, sizes in CUTS.items():
        compare(world, mesh, name, sizes)
    own_operators(mesh)
    values_in_python(mesh)
    text(world, mesh)
    memory(world, mesh)
    errors(world, mesh)
    hooks.rank(mesh, expect)
    front.rank(mesh, expect)
    tensors.rank(world, mesh, expect)
    settings.rank(world, mesh, expect)
    rules.rank(world, mesh, expect)
    modules.rank(mesh, expect)
    recompute.rank(mesh, expect)
    loops.rank(mesh, expect)
    transforms.rank(world, mesh, expect)
    files.rank(world, mesh, expect, Path(folder))
    data.rank(world, mesh, expect, Path(folder))
    world.barrier()


def errors_of_ranks():
    """An error of one rank ends the others, which wait in a collective, and keeps its type."""

    class Mine(Exception):
        pass

    def fail(world, which):
        if world.rank == which:
            raise Mine("rank one has failed")
        world.barrier()

    try:
        mh.run_ranks(3, fail, 1)
        expect(False, "an error of a rank is raised")
    except Mine as error:
        expect(str(error) == "rank one has failed", "an error's text")


def interpreter_is_free():
    """While ranks wait in a collective for one that works in Python, other threads of Python go on."""
    order, go = [], threading.Event()

    def other():
        order.append("other")
        go.set()

    def wait(world):
        x = mh.from_local(torch.ones(2), mh.init_device_mesh(world, "cpu", [3]), [mh.Shard(0)])
        if world.rank == 0:
            threading.Thread(target=other).start()
            expect(go.wait(60), "another thread runs")
            order.append("rank")
        expect(mh.full_tensor(x.sum()).item() == 6, "a sum")

    mh.run_ranks(3, wait)
    expect(order == ["other", "rank"], f"order {order}")


expect(transforms.warns_once() == 1, "torch.compile warns once")
if len(sys.argv) > 2 and sys.argv[2] == "mpi":
    rank(mh.mpi_world(), sys.argv[3])
else:
    with tempfile.TemporaryDirectory() as folder:
        mh.run_ranks(3, rank, folder)
    errors_of_ranks()
    interpreter_is_free()
for failure in failures:
    print("FAILED:", failure)
print("failed" if failures else "all well")
sys.exit(len(failures) > 0)
