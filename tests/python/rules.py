# SPDX-License-Identifier: Apache-2.0
"""Sharding rules of own operators, registered from Python (Y05): the same values and gradients as on one tensor, on the
blocks alone."""

import moonhalo as mh
import torch
from refusals import refused

FULL = torch.arange(44, dtype=torch.float64).sin().reshape(11, 4)
OTHER = torch.arange(20, dtype=torch.float64).cos().reshape(4, 5)
ROWS = [5, 0, 6]
seen = []  # specs that the rule of `scaled` has got


@torch.library.custom_op("python_rules::scaled", mutates_args=())
def scaled(x: torch.Tensor, by: float) -> torch.Tensor:
    """Each row backwards, times a number."""
    assert not mh.is_shard_tensor(x)
    return x.flip(-1) * by


@scaled.register_fake
def _(x, by):
    return torch.empty_like(x)


scaled.register_autograd(
    lambda ctx, grad: (scaled(grad, ctx.by), None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "by", inputs[1]),
)

own = torch.library.Library("python_rules", "FRAGMENT")
own.define("total(Tensor x) -> Tensor")
own.define("product(Tensor a, Tensor b) -> (Tensor, Tensor)")
for name in ("late", "wrong_dim", "fails", "nothing", "clash", "no_shape"):
    own.define(f"{name}(Tensor x) -> Tensor")
    own.impl(name, lambda x: x + 0, "CPU")
    if name != "no_shape":
        own.impl(name, torch.empty_like, "Meta")
own.define("writes_(Tensor(a!) x) -> Tensor(a!)")
for backend in ("CPU", "Meta"):
    own.impl("total", lambda x: x.sum(0), backend)
    own.impl("product", lambda a, b: (a @ b, 2 * (a @ b)), backend)
ops = torch.ops.python_rules


@mh.register_sharding(scaled)
def _(x, by):
    seen.append((x, by))
    return [([mh.Shard(d)], [mh.Shard(d), None]) for d in range(x.ndim - 1)] + [([mh.Partial()], [mh.Partial(), None])]


@mh.register_sharding(ops.total)
def _(x):
    return [([mh.Partial()], [mh.Shard(0)]), ([mh.Shard(0)], [mh.Shard(1)])]


@mh.register_sharding(ops.product.default)
def _(a, b):
    return [
        ([mh.Replicate()] * 2, [mh.Replicate()] * 2),
        ([mh.Shard(0)] * 2, [mh.Shard(0), mh.Replicate()]),
        ([mh.Shard(1)] * 2, [mh.Replicate(), mh.Shard(-1)]),
        ([mh.Partial()] * 2, [mh.Shard(1), mh.Shard(0)]),
    ]


mh.register_sharding([ops.wrong_dim])(lambda x: [([mh.Shard(2)], [mh.Shard(0)])])
mh.register_sharding(ops.fails)(lambda x: 1 // 0)
mh.register_sharding(ops.nothing)(lambda x: "Shard(0)")
mh.register_sharding(ops.clash)(lambda x: [([mh.Shard(0)], [mh.Shard(0)]), ([mh.Partial()], [mh.Shard(0)])])
mh.register_sharding(ops.no_shape)(lambda x: [([mh.Shard(0)], [mh.Shard(0)])])


def close(a, b):
    return torch.allclose(a, b, rtol=1e-12)


def blocks_alone(expect, what, op, call):
    """What `call` returns; it moves nothing and gathers nothing."""
    found = []
    calls = [one for one in mh.op_trace(lambda: found.append(call())) if one["op"].startswith(op)]
    expect(calls and all(not one["gathered"] and one["bytes"] == 0 for one in calls), f"{what}: {calls}")
    return found[0]


def values(mesh, expect):
    cut = [mh.Shard(0, ROWS)]
    x = mh.distribute_tensor(FULL, mesh, cut).requires_grad_()
    plain = FULL.clone().requires_grad_()
    y = blocks_alone(expect, "scaled", "python_rules", lambda: scaled(x, 3.0))
    expect(y.placements == cut and close(y.full_tensor(), scaled(plain, 3.0)), f"scaled: {y.placements}")
    blocks_alone(expect, "its derivative", "python_rules", lambda: y.square().sum().backward())
    scaled(plain, 3.0).square().sum().backward()
    expect(close(x.grad.full_tensor(), plain.grad), "the derivative of scaled")
    spec, by = next((spec, by) for spec, by in seen if spec.placements == cut)
    expect(by == 3.0 and spec.shape == FULL.shape and spec.ndim == 2 and spec.dtype == torch.float64, f"{spec}")
    # Cut along the dim that it needs whole, it is cut anew; Partial stays.
    columns = mh.distribute_tensor(FULL, mesh, [mh.Shard(1)])
    expect(close(scaled(columns, 2.0).full_tensor(), scaled(FULL, 2.0)), "scaled of columns")
    addend = mh.from_local(FULL, mesh, [mh.Partial()])
    y = blocks_alone(expect, "scaled of a Partial", "python_rules", lambda: scaled(addend, 2.0))
    expect(y.placements[0].is_partial() and close(y.full_tensor(), 3 * scaled(FULL, 2.0)), "scaled of a Partial")

    y = blocks_alone(expect, "total", "python_rules", lambda: ops.total(x.detach()))
    expect(y.placements[0].is_partial() and close(y.full_tensor(), FULL.sum(0)), f"total: {y.placements}")
    y = blocks_alone(expect, "total of columns", "python_rules", lambda: ops.total(columns))
    expect(y.placements == [mh.Shard(0, [2, 1, 1])] and close(y.full_tensor(), FULL.sum(0)), f"columns: {y.placements}")

    # The sum over 40 columns and rows is cut, because its results are smaller than the arguments.
    left, right = FULL.repeat(1, 10), OTHER.repeat(10, 1)
    whole = left @ right
    for name, a, b in (
        ("rows", cut, [mh.Replicate()]),
        ("columns", [mh.Replicate()], [mh.Shard(1, [1, 4, 0])]),
        ("sums", [mh.Shard(1, [10, 0, 30])], [mh.Shard(0, [10, 0, 30])]),
    ):
        a, b = mh.distribute_tensor(left, mesh, a), mh.distribute_tensor(right, mesh, b)
        one, two = blocks_alone(expect, f"product: {name}", "python_rules", lambda: ops.product(a, b))
        expect(close(one.full_tensor(), whole) and close(two.full_tensor(), 2 * whole), f"product: {name}")
    both = mh.distribute_tensor(left, mesh, cut), mh.distribute_tensor(right, mesh, [mh.Shard(1)])
    expect(close(ops.product(*both)[1].full_tensor(), 2 * whole), "product: rows and columns")


def mistakes(mesh, expect):
    x = mh.distribute_tensor(FULL, mesh, [mh.Shard(0, ROWS)])
    for name, text in {
        "wrong_dim": "acceptable sharding 1 of its registered sharding cuts dim 2 of a tensor of 2 dims",
        "fails": "ZeroDivisionError",
        "nothing": "does not return a list",
        "clash": "acceptable sharding 2 of its registered sharding cuts dim 0, which another",
    }.items():
        refused(expect, name, ValueError, text, lambda: getattr(ops, name)(x))
    refused(expect, "no kernel without data", NotImplementedError, "no_shape", lambda: ops.no_shape(x))
    ops.late(x)
    mesh.barrier()
    register = lambda op: mh.register_sharding(op)(lambda x: [])
    refused(expect, "a rule after a call", ValueError, "comes too late", lambda: register(ops.late))
    refused(expect, "a second rule", ValueError, "there is a rule already", lambda: register(ops.total))
    refused(expect, "a rule of the engine", ValueError, "there is a rule already", lambda: register(torch.ops.aten.mm))
    refused(expect, "an operator that writes", ValueError, "writes to 'x'", lambda: register(ops.writes_))
    refused(expect, "no operator", TypeError, "no operator of PyTorch", lambda: register(torch.relu))


def rank(world, mesh, expect):
    values(mesh, expect)
    x = mh.distribute_tensor(FULL, mh.init_device_mesh(world, "cpu", [1, 3]), [mh.Shard(1), mh.Shard(0, ROWS)])
    expect(close(scaled(x, 3.0).full_tensor(), scaled(FULL, 3.0)), "scaled on a mesh of two dims")
    mistakes(mesh, expect)
