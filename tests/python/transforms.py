# SPDX-License-Identifier: Apache-2.0
"""torch.compile, torch.func and forward mode with ShardTensors, beside plain tensors (Y05)."""

import warnings

import moonhalo as mh
import torch
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

ROWS = [5, 0, 6]
FULL = torch.arange(22, dtype=torch.float64).sin().reshape(11, 2)
WEIGHT = torch.tensor([[1.0, -0.5], [0.25, 2.0]], dtype=torch.float64)


def net():
    made = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.GELU(), torch.nn.LayerNorm(3)).double()
    with torch.no_grad():
        for number, parameter in enumerate(made.parameters()):
            parameter.copy_(
                torch.arange(parameter.numel(), dtype=torch.float64).add(number).cos().reshape(parameter.shape)
            )
    return made


def of_parameters(made, x):
    return grad(lambda p: functional_call(made, p, (x,)).square().mean())(dict(made.named_parameters()))


def dual(x):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual((forward_ad.make_dual(x, 2 * x).softmax(0) @ WEIGHT)).tangent


# name: x -> a tensor or a structure of tensors
PROGRAMS = {
    "grad": lambda x: grad(lambda t: (t.sin() * t.softmax(0)).sum())(x),
    "grad of a plain argument": lambda x: grad(lambda w: (x @ w).sin().sum())(WEIGHT),
    "grad of parameters": lambda x: of_parameters(net(), x),
    "vjp": lambda x: vjp(lambda t: t.softmax(0) @ WEIGHT, x)[1](x),
    "vmap over blocks": lambda x: vmap(lambda t: (t * t.softmax(0)).sum())(x),
    "vmap over columns": lambda x: vmap(lambda t: t.softmax(0), in_dims=1, out_dims=1)(x),
    "jacrev": lambda x: jacrev(lambda t: t.square().sum(0))(x),
    "double backward": lambda x: torch.autograd.functional.jvp(lambda t: t.softmax(0) @ WEIGHT, x, x)[1],
    "a gradient for each sample": lambda x: vmap(grad(lambda w, row: (w @ row).sin().sum()), in_dims=(None, 0))(
        WEIGHT, x
    ),
}
FORWARD = {
    "jvp": lambda x: jvp(lambda t: t.softmax(0) @ WEIGHT, (x,), (2 * x,))[1],
    "dual_level": dual,
    "jacfwd": lambda x: jacfwd(lambda t: t.sin().sum(0))(x),
    "jacfwd beside a block": lambda x: jacfwd(lambda w: (x * w[0]).sum(0))(WEIGHT),
    "jacfwd of a product": lambda x: jacfwd(lambda w: x @ w)(WEIGHT),
    "jacfwd of einsum": lambda x: jacfwd(lambda w: torch.einsum("ij,jk->ki", x, w))(WEIGHT),
    "jacfwd of a layer": lambda x: jacfwd(lambda w: torch.nn.functional.linear(x, w.t()).softmax(0))(WEIGHT),
    "hessian": lambda x: hessian(lambda w: (x @ w).sin().sum())(WEIGHT),
}


def whole(value):
    return torch.utils._pytree.tree_map(lambda one: mh.full_tensor(one) if mh.is_shard_tensor(one) else one, value)


def same(a, b):
    a, b = (torch.utils._pytree.tree_leaves(whole(one)) for one in (a, b))
    return len(a) == len(b) and all(torch.allclose(one, other, rtol=1e-10, atol=1e-12) for one, other in zip(a, b))


def programs(mesh, expect, world):
    x = mh.distribute_tensor(FULL, mesh, [mh.Shard(0, ROWS)])
    for name, program in PROGRAMS.items():
        expect(same(program(x), program(FULL)), f"torch.func: {name}")
    for name, program in FORWARD.items():
        if world.backend != "threads":
            before = mh.set_fallback("error")  # nothing is gathered
            expect(same(program(x), program(FULL)), f"forward mode: {name}")
            mh.set_fallback(before)
            continue
        try:
            program(x)
            expect(False, f"forward mode on threads: {name}")
        except NotImplementedError as error:
            expect("mpirun" in str(error), f"forward mode on threads: {name}: {error}")


def compiled(mesh, expect, world):
    """ShardTensors are computed eagerly, plain tensors compiled, by one rank at a time: threads share the compiler."""
    x = mh.distribute_tensor(FULL, mesh, [mh.Shard(0, ROWS)])
    seen = []

    def backend(graph, inputs):
        seen.append(graph)
        return graph.forward

    made = torch.compile(net(), backend=backend)
    function = torch.compile(lambda t, more: t * 2 + more["y"], backend=backend, fullgraph=True)
    inplace = net()
    inplace.compile(backend=backend)
    divided = torch.compile(mh.distribute_module(net(), mesh), backend=backend)

    @torch.compile(backend=backend)
    def decorated(t):
        return function(t, {"y": 1.0}) * 3

    calls = {
        "a module": lambda t: made(t),
        "a function": lambda t: function(t, {"y": t}),
        "module.compile": lambda t: inplace(t),
        "a divided module": lambda t: divided(t),
        "a decorator": lambda t: decorated(t),
    }
    plain = net()
    expected = {
        "a module": plain(FULL),
        "a function": 3 * FULL,
        "module.compile": plain(FULL),
        "a divided module": plain(FULL),
        "a decorator": 3 * (2 * FULL + 1),
    }
    for name, call in calls.items():
        y = call(x)
        expect(mh.is_shard_tensor(y) and same(y, expected[name]) and not seen, f"torch.compile of {name}")
    made(x).square().sum().backward()
    plain(FULL).square().sum().backward()
    expect(
        same([one.grad for one in made.parameters()], [one.grad for one in plain.parameters()]),
        "torch.compile: gradients",
    )
    for rank in range(world.size):
        world.barrier()
        if rank == world.rank:
            for name in ("a module", "a function", "a decorator"):
                seen.clear()
                expect(same(calls[name](FULL), expected[name]) and seen, f"torch.compile of {name}, plain")
    world.barrier()


def warns_once():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mesh = mh.init_device_mesh(mh.self_world(), "cpu", [1])
        function = torch.compile(lambda t: t + 1)
        for _ in range(2):
            function(mh.distribute_tensor(torch.ones(2), mesh, [mh.Shard(0)]))
    return len([one for one in caught if "torch.compile: ShardTensors" in str(one.message)])


def rank(world, mesh, expect):
    programs(mesh, expect, world)
    compiled(mesh, expect, world)
