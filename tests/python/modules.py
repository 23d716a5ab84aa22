# SPDX-License-Identifier: Apache-2.0
"""torch.nn modules divided by plans, by fully_shard and by replicate, beside the same module of plain tensors (Y05)."""

import copy
import gc
import json
import tempfile
import warnings
import weakref
from pathlib import Path

import moonhalo as mh
import torch
import torch.nn.functional as F
from refusals import refused
from torch.distributed.fsdp import MixedPrecisionPolicy

ROWS = [3, 0, 4]  # samples of each rank


def values(shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.fc1 = torch.nn.Linear(width, 2 * width)
        self.fc2 = torch.nn.Linear(2 * width, width)
        self.register_buffer("scale", torch.ones(width))

    def forward(self, x, shift=None):
        y = x + self.scale * self.fc2(F.gelu(self.fc1(self.norm(x))))
        return y if shift is None else y + shift


class Net(torch.nn.Module):
    """Two blocks, and a last layer whose weight is that of the first."""

    def __init__(self, width=6):
        super().__init__()
        self.first = torch.nn.Linear(width, width)
        self.blocks = torch.nn.Sequential(Block(width), Block(width))
        self.last = torch.nn.Linear(width, width)
        self.last.weight = self.first.weight

    def forward(self, x, shift=None):
        y = self.last(self.blocks(self.first(x)))
        return y if shift is None else y + shift


def net(seed=1):
    made = Net().double()
    with torch.no_grad():
        for number, parameter in enumerate(made.parameters()):
            parameter.copy_(0.4 * values(parameter.shape, seed + number))
    return made


def whole(tensor):
    return mh.full_tensor(tensor) if mh.is_shard_tensor(tensor) else tensor


def train(made, x, y, steps=3, clip=None):
    """What a loop sees: losses, norms, gradients, weights."""
    optimizer = torch.optim.AdamW(made.parameters(), lr=0.05)
    seen = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.mse_loss(made(x), y)
        loss.backward()
        if clip is not None:
            seen.append(clip(made.parameters(), 0.1))
        seen += [loss] + [parameter.grad for parameter in made.parameters()]
        optimizer.step()
    return [whole(one).detach().clone() for one in seen + list(made.parameters())]


def close(a, b, rtol=1e-9):
    return len(a) == len(b) and all(
        torch.allclose(one, other.to(one.dtype), rtol=rtol, atol=1e-3 * rtol) for one, other in zip(a, b)
    )


class OwnStyle(mh.ParallelStyle):
    def _apply(self, module, device_mesh):
        module.weight = torch.nn.Parameter(mh.distribute_tensor(module.weight.detach(), device_mesh, [mh.Shard(0)]))


def plans(mesh, expect):
    x, y = values((7, 6), 50), values((7, 6), 51)
    expected = train(net(), x, y, clip=torch.nn.utils.clip_grad_norm_)
    columns = {"blocks.*.fc1": mh.ColwiseParallel(), "blocks.*.fc2": mh.RowwiseParallel()}
    placements = {
        "parameter": {
            "blocks.*.fc1.weight": [mh.Shard(0, [7, 0, 5])],
            "blocks.*.fc1.bias": [mh.Shard(0, [7, 0, 5])],
            "first.weight": mh.Shard(1),
        },
        "forward": {"blocks.1.input": [[mh.Replicate()]], "first.output": [[mh.Shard(0)]]},
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plan.json"
        file.write_text(json.dumps({"parameter": {r"blocks\.\d\.fc1\.weight": ["S(0)"]}}))
        for what, plan in {
            "styles": columns,
            "placements": placements,
            "a file": file,
            "its path": str(file),
            "one of one's own": {"blocks.0.fc1": OwnStyle()},
            "pairs": {"blocks.0": mh.PairwiseParallel()},
        }.items():
            made = mh.parallelize_module(net(), mesh, plan)
            expect(made.first.weight is made.last.weight, f"parallelize_module, {what}: a shared weight")
            expect(
                all(
                    isinstance(one, torch.nn.Parameter) and isinstance(one, mh.ShardTensor) for one in made.parameters()
                ),
                f"parallelize_module, {what}: parameters",
            )
            expect(isinstance(made.blocks[0].scale, mh.ShardTensor), f"parallelize_module, {what}: buffers")
            expect(list(made.state_dict()) == list(net().state_dict()), f"parallelize_module, {what}: names")
            expect(close(train(made, x, y, clip=mh.clip_grad_norm_), expected), f"parallelize_module, {what}")
    made = mh.parallelize_module(net(), mesh, columns)
    expect(
        made.blocks[1].fc1.weight.placements[0].is_shard(0) and made.blocks[1].fc2.weight.placements[0].is_shard(1),
        "styles: placements",
    )
    expect(
        made.blocks[1].fc2.bias.placements == [mh.Replicate()]
        and repr(mh.ColwiseParallel(use_local_output=False)) == "ColwiseParallel(use_local_output=False)",
        "styles: text",
    )
    new = copy.deepcopy(made)
    expect(
        close(train(new, x, y), train(net(), x, y)) and torch.equal(whole(made.first.weight), net().first.weight),
        "deepcopy of a divided module",
    )
    cut = mh.distribute_tensor(x, mesh, [mh.Shard(0, ROWS)])
    expect(torch.allclose(whole(made(cut, shift=cut)), net()(x, shift=x), rtol=1e-9), "a cut input")

    # Arguments by name, a dict of results.
    class Named(torch.nn.Module):
        def forward(self, x, *, mask):
            return {"x": x * mask, "n": 2}

    named = mh.parallelize_module(
        Named(),
        mesh,
        {
            "": mh.PrepareModuleInput(
                input_kwarg_layouts={"mask": mh.Replicate()},
                desired_input_kwarg_layouts={"mask": mh.Shard(0)},
                use_local_output=False,
            )
        },
    )
    out = named(cut, mask=x)
    expect(torch.allclose(whole(out["x"]), x * x) and out["n"] == 2, "arguments by name")
    results = mh.parallelize_module(
        torch.nn.Identity(),
        mesh,
        mh.PrepareModuleOutput(
            output_layouts=mh.Shard(0), desired_output_layouts=mh.Replicate(), use_local_output=True
        ),
    )
    expect(torch.equal(results(cut), x), "PrepareModuleOutput")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mh.parallelize_module(made, mesh, columns)
    expect(len([one for one in caught if "before" in str(one.message)]) >= (mesh.rank == 0), "a second call warns")
    refused(
        expect,
        "a name that matches nothing",
        ValueError,
        "blocks.0.fc1",
        lambda: mh.parallelize_module(net(), mesh, {"blocks.0.fc": mh.ColwiseParallel()}),
    )
    refused(expect, "no plan", TypeError, "ColwiseParallel", lambda: mh.parallelize_module(net(), mesh, 3))
    refused(expect, "no module", TypeError, "torch.nn.Module", lambda: mh.parallelize_module(x, mesh, columns))
    refused(expect, "no mesh", TypeError, "DeviceMesh", lambda: mh.parallelize_module(net(), 3, columns))
    refused(
        expect,
        "a class in a plan",
        TypeError,
        "styles, placements",
        lambda: mh.parallelize_module(net(), mesh, {"first": mh.ColwiseParallel}),
    )


def modules(mesh, expect):
    x, y = values((7, 6), 50), values((7, 6), 51)

    def partition(name, module, mesh):
        if name == "first":
            module.weight = torch.nn.Parameter(mh.distribute_tensor(module.weight.detach(), mesh, [mh.Shard(0)]))

    made = mh.distribute_module(
        net(),
        mesh,
        partition,
        lambda module, args, mesh: tuple(mh.distribute_tensor(one, mesh, [mh.Shard(0, ROWS)]) for one in args),
        lambda module, out, mesh: out.redistribute([mh.Replicate()]),
    )
    out = made(x)
    plain = net()
    plain.last.weight = torch.nn.Parameter(plain.last.weight.detach().clone())  # partition has parted them
    expect(out.placements == [mh.Replicate()] and torch.allclose(whole(out), plain(x), rtol=1e-9), "distribute_module")
    expect(
        made.first.weight.placements[0].is_shard() and made.last.weight.placements == [mh.Replicate()],
        "distribute_module: placements",
    )
    expect(
        close(train(mh.distribute_module(net(), mesh), x, y), train(net(), x, y)), "distribute_module without functions"
    )


def units(mesh, expect):
    x, y = values((sum(ROWS), 6), 50), values((sum(ROWS), 6), 51)
    begin = sum(ROWS[: mesh.rank])
    mine, labels = x[begin : begin + ROWS[mesh.rank]], mh.local_batch(y[begin : begin + ROWS[mesh.rank]].clone(), mesh)
    expected = train(net(), x, y, clip=torch.nn.utils.clip_grad_norm_)

    def sharded(made, **options):
        for block in made.blocks:
            mh.fully_shard(block, mesh=mesh, min_numel=1, **options)
        return mh.fully_shard(made, mesh=mesh, min_numel=1, **options)

    ways = {
        "fully_shard": sharded(net()),
        "fully_shard, kept": sharded(net(), reshard_after_forward=False, reshard_after_backward=False),
        "fully_shard, one unit": mh.fully_shard(net(), mesh=mesh, min_numel=1),
        "replicate": mh.replicate(net(), mesh=mesh),
    }
    for what, made in ways.items():
        expect(
            made.first.weight is made.last.weight and isinstance(made.first.weight, torch.nn.Parameter),
            f"{what}: a shared weight",
        )
        expect(made.first.weight.placements[0].is_stored == (what != "replicate"), f"{what}: placements")
        before = copy.deepcopy(made)
        expect(close(train(made, mine, labels, clip=mh.clip_grad_norm_), expected), what)
        expect(close(train(before, mine, labels, clip=mh.clip_grad_norm_), expected), f"{what}: a copy")
    held = sum(one.to_local().numel() for one in ways["fully_shard"].parameters())
    expect(held <= sum(one.numel() for one in net().parameters()) / 3 + 8, f"a third of the parameters: {held}")

    # A mask that is the same for all samples; an error in a forward; a step of several passes.
    made = sharded(net())
    shift = mh.constant(values((6,), 60))
    expect(torch.allclose(whole(made(mine, shift=shift)), net()(x, shift=shift), rtol=1e-9), "constant")
    refused(
        expect, "a forward that throws", Exception, "", lambda: made(mh.local_batch(mine[:, :5].clone()), shift=shift)
    )
    expect(
        torch.allclose(whole(made(mine, shift=shift)), net()(x, shift=shift), rtol=1e-9), "after a forward that throws"
    )
    plain = net()
    mh.set_requires_gradient_sync(made, False)
    for one, a, b in ((made, mine, labels), (plain, x, y)):
        F.mse_loss(one(a), b).backward()
        F.mse_loss(one(2 * a), b).backward()
    mh.finish_grad_sync(made)
    expect(
        close([whole(one.grad) for one in made.parameters()], [one.grad for one in plain.parameters()]),
        "several passes",
    )

    half = net()
    for block in half.blocks:
        block.scale = block.scale.float()  # buffers keep their dtype, as in PyTorch
    mh.fully_shard(half.blocks, mesh=mesh, min_numel=1, mp_policy=MixedPrecisionPolicy(param_dtype=torch.float32))
    mh.fully_shard(
        half,
        mesh=mesh,
        min_numel=1,
        mp_policy=MixedPrecisionPolicy(param_dtype=torch.float32, output_dtype=torch.float64),
    )
    out = half(mine)
    expect(
        out.dtype == torch.float64
        and torch.allclose(whole(out), net()(x), rtol=1e-4, atol=1e-5)
        and not torch.allclose(whole(out), net()(x), rtol=1e-12),
        "param_dtype",
    )
    out.sum().backward()
    expect(
        half.first.weight.grad.dtype == torch.float64 and half.first.weight.dtype == torch.float64,
        "param_dtype: gradients",
    )
    alone = mh.replicate(net(), mesh=mesh, output="local")
    block = alone(mine)
    expect(not mh.is_shard_tensor(block) and torch.allclose(block, net()(mine), rtol=1e-9), "output local")

    refused(expect, "output", ValueError, '"local"', lambda: mh.replicate(net(), mesh=mesh, output="locally"))
    refused(expect, "no mesh", TypeError, "DeviceMesh", lambda: mh.fully_shard(net(), mesh=3))
    graded = net()
    graded(x).sum().backward()
    refused(expect, "a gradient", ValueError, "before the first backward", lambda: mh.fully_shard(graded, mesh=mesh))
    old = net()
    late = torch.optim.SGD(old.parameters(), lr=0.1)
    mh.fully_shard(old, mesh=mesh)(mine).sum().backward()
    refused(expect, "an optimizer made before", ValueError, "optimizer", late.step)


def hooks(mesh, expect):
    """Hooks of parameters that other tensors replace would be lost."""
    for who, call in {
        "fully_shard": lambda made: mh.fully_shard(made, mesh=mesh),
        "replicate": lambda made: mh.replicate(made, mesh=mesh),
        "parallelize_module": lambda made: mh.parallelize_module(made, mesh, {"": mh.ColwiseParallel()}),
    }.items():
        for register in ("register_hook", "register_post_accumulate_grad_hook"):
            made = torch.nn.Linear(6, 6, dtype=torch.float64)
            hook = getattr(made.bias, register)(lambda _: None)
            refused(expect, register, NotImplementedError, f"{who}: the parameter 'bias' has", lambda: call(made))
            expect(not mh.is_shard_tensor(made.weight), f"{who}: nothing has changed")
            hook.remove()
            call(made)
    for who, options in (("fully_shard", {"min_numel": 1}), ("replicate", {})):
        # Hooks of the engine's own are none that the program would miss.
        made = getattr(mh, who)(torch.nn.Linear(6, 6, dtype=torch.float64), mesh=mesh, **options)
        mh.parallelize_module(made, mesh, {"parameter": {"weight": [mh.Shard(1)], "bias": [mh.Replicate()]}})
        placement = mh.placements(made.weight)[0]
        expect(placement.is_shard() and placement.dim == 1, f"{who}: parameters of units are replaced")


def deleted(mesh, expect):
    for what in ("fully_shard", "replicate"):
        made = getattr(mh, what)(net(), mesh=mesh)
        weight = weakref.ref(made.blocks[0].fc1.weight)
        del made
        gc.collect()
        expect(weight() is None, f"{what}: weights of a deleted module are freed")


def rank(mesh, expect):
    plans(mesh, expect)
    modules(mesh, expect)
    units(mesh, expect)
    hooks(mesh, expect)
    deleted(mesh, expect)
