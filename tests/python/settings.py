# SPDX-License-Identifier: Apache-2.0
"""Settings of ranks, traces, and functions of blocks (Y05)."""

import moonhalo as mh
import torch
from refusals import refused

FULL = torch.arange(44, dtype=torch.float64).sin().reshape(1, 1, 11, 4)
WEIGHT = torch.ones(1, 1, 3, 3, dtype=torch.float64) / 9
ROWS = [5, 0, 6]
own = torch.library.Library("python_settings", "DEF")  # an operator without a rule
own.define("twice(Tensor x) -> Tensor")
own.impl("twice", lambda x: 2 * x, "CPU")


def smooth(mesh):
    return torch.nn.functional.conv2d(mh.distribute_tensor(FULL, mesh, [mh.Shard(2, ROWS)]), WEIGHT, padding=1)


def traces(mesh, expect):
    calls = mh.op_trace(lambda: smooth(mesh))
    seen = [call for call in calls if call["op"].startswith("aten::conv")]
    expect(len(seen) == 1 and seen[0]["traffic"] == "halo" and not seen[0]["gathered"], f"op_trace: {calls}")
    expect(seen[0]["inputs"][0].startswith("Shard(2, {5, 0, 6})"), f"op_trace: {seen}")
    expect(
        any(call["op"] == "aten::mul.Tensor" for call in mh.op_trace(lambda x, by: x * by, smooth(mesh), by=2)),
        "op_trace with arguments",
    )
    refused(expect, "an error in a trace", ZeroDivisionError, "", lambda: mh.op_trace(lambda: 1 // 0))
    expect(mh.op_trace(lambda: None) == [], "a trace ends with an error")


def settings(world, mesh, expect):
    before = mh.set_halo(world)
    expect(before == {"overlap": True, "exchange": "p2p", "keep": False}, f"set_halo tells: {before}")
    plain = torch.nn.functional.conv2d(FULL, WEIGHT, padding=1)
    mh.set_halo(world, exchange="all_to_all", overlap=False)
    expect(
        mh.set_halo(world)["exchange"] == "all_to_all"
        and torch.allclose(smooth(mesh).full_tensor(), plain, rtol=1e-12),
        "set_halo",
    )
    expect(mh.set_halo(world, **before)["overlap"] is False and mh.set_halo(world) == before, "set_halo back")
    expect(mh.set_halo(world, keep=True) == before and mh.set_halo(world)["keep"] is True, "set_halo takes keep")
    expect(torch.allclose(smooth(mesh).full_tensor(), plain, rtol=1e-12), "keep has no effect")
    mh.set_halo(world, keep=False)
    refused(expect, "set_halo", ValueError, "all_to_all", lambda: mh.set_halo(world, exchange="all_to_al"))
    # Every other row: blocks of the centres' owners, or balanced.
    strided = lambda: torch.nn.functional.conv2d(
        mh.distribute_tensor(FULL, mesh, [mh.Shard(2, ROWS)]), WEIGHT, stride=2, padding=1
    )
    first = strided()
    expect(mh.set_output_cut(world, "rebalance") == "geometry", "set_output_cut tells")
    second = strided()
    mh.set_output_cut(world, "geometry")
    expect(
        second.placements[0].sizes == [2, 2, 2] != first.placements[0].sizes,
        f"set_output_cut: {first.placements} {second.placements}",
    )
    expect(torch.allclose(first.full_tensor(), second.full_tensor(), rtol=1e-12), "set_output_cut keeps values")
    expect(mh.rebalance(first, 2).placements[0].sizes == [2, 2, 2], "rebalance")
    refused(expect, "set_output_cut", ValueError, "rebalance", lambda: mh.set_output_cut(world, "rebalanced"))

    gathered = lambda: torch.ops.python_settings.twice(mh.distribute_tensor(FULL, mesh, [mh.Shard(2, ROWS)]))
    expect(mh.set_fallback("error") == "replicate", "set_fallback tells")
    refused(expect, "an operator without a rule", NotImplementedError, "twice", gathered)
    expect(mh.set_fallback("replicate") == "error", "set_fallback back")
    calls = mh.op_trace(lambda: expect(torch.equal(gathered().full_tensor(), 2 * FULL), "an operator without a rule"))
    expect([call["op"] for call in calls if call["gathered"]] == ["python_settings::twice"], f"gathered: {calls}")
    refused(expect, "set_fallback", ValueError, "replicate", lambda: mh.set_fallback("replica"))


class Outside(torch.autograd.Function):
    """A function that does not support ShardTensors."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        assert not mh.is_shard_tensor(x) and not mh.is_shard_tensor(w)
        return x * w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad * w, (grad * x).sum_to_size(w.shape)


def maps(mesh, expect):
    full = FULL[0, 0]
    w = torch.tensor([0.5, -1.0, 2.0, 3.0], dtype=torch.float64)
    cut, whole = [mh.Shard(0, ROWS)], [mh.Replicate()]

    def leaves():
        return [
            mh.distribute_tensor(full, mesh, cut).requires_grad_(),
            mh.distribute_tensor(w, mesh, whole).requires_grad_(),
        ]

    plain = [full.clone().requires_grad_(), w.clone().requires_grad_()]
    (Outside.apply(*plain).tanh().square().sum()).backward()

    def check(what, y, x, weight):
        y.tanh().square().sum().backward()
        expect(torch.allclose(y.full_tensor(), full * w, rtol=1e-12) and y.placements == cut, f"local_map: {what}")
        expect(torch.allclose(x.grad.full_tensor(), plain[0].grad, rtol=1e-12), f"local_map: {what}: gradient")
        expect(
            torch.allclose(weight.grad.full_tensor(), plain[1].grad, rtol=1e-12),
            f"local_map: {what}: gradient of a Replicate",
        )

    x, weight = leaves()
    check("blocks", mh.local_map(Outside.apply, out_placements=cut, in_placements=(cut, whole))(x, weight), x, weight)
    x, weight = leaves()
    nested = mh.local_map(
        lambda pair, by, flag=None: {"y": Outside.apply(*pair) * by, "n": by, "b": pair[0], "flag": flag},
        out_placements=(cut, None, None, None),
        in_placements=(cut, whole),
    )
    result = nested([x, weight], 1, flag="on")
    expect(
        result["n"] == 1 and result["flag"] == "on" and result["b"].shape[0] == ROWS[mesh.rank], "local_map: structures"
    )
    check("structures", result["y"], x, weight)
    x, weight = leaves()
    moved = mh.local_map(Outside.apply, cut, (cut, whole), redistribute_inputs=True)(
        x.redistribute([mh.Shard(1)]), weight
    )
    check("redistributed", moved, x, weight)
    # Parameters that the function holds are summed over the ranks.
    layer = torch.nn.Linear(4, 4, bias=False).double()
    with torch.no_grad():
        layer.weight.copy_(torch.diag(w))
    x, _ = leaves()
    mh.local_map(layer, cut, (cut,))(x).tanh().square().sum().backward()
    expect(torch.allclose(layer.weight.grad.diagonal(), plain[1].grad, rtol=1e-12), "local_map: a module's parameters")

    x, weight = leaves()
    refused(
        expect,
        "other placements",
        ValueError,
        "Shard(1",
        lambda: mh.local_map(Outside.apply, cut, (cut,))(x.redistribute([mh.Shard(1)]), weight),
    )
    refused(
        expect,
        "another number of results",
        ValueError,
        "2 results, 1 entries",
        lambda: mh.local_map(lambda x: (x, x), cut)(x),
    )
    refused(expect, "a number with placements", TypeError, "not a tensor", lambda: mh.local_map(lambda x: 3, cut)(x))
    refused(expect, "no placements", TypeError, "neither placements", lambda: mh.local_map(Outside.apply, ["S(0)"]))


def rank(world, mesh, expect):
    traces(mesh, expect)
    settings(world, mesh, expect)
    maps(mesh, expect)
