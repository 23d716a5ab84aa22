# SPDX-License-Identifier: Apache-2.0
"""Every way into a ShardTensor from Python while another rank thread comes late: PyTorch holds the interpreter in many
of its functions, and the late rank needs it to come (X15). usage: MOONHALO_TIMEOUT_S=60 late_rank.py
FOLDER_OF_THE_MODULE"""

import math
import sys
import threading
import time

sys.path.insert(0, sys.argv[1])
import moonhalo as mh
import torch

FULL = torch.arange(2 * 9 * 4, dtype=torch.float64).reshape(2, 9, 4)


def changed(x, index, value):
    y = x.clone()
    y[index] = value
    return y


def grad_of(x, program):
    leaf = x.detach().requires_grad_()
    return torch.autograd.grad(program(leaf), leaf)[0]


def minimized(x):
    w = torch.nn.Parameter(torch.zeros(4, dtype=torch.float64))
    optimizer = torch.optim.LBFGS([w], max_iter=4, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = (x * 0.1 - w).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    return w.detach()


def clipped(x):
    net = torch.nn.Linear(4, 2).double()
    with torch.no_grad():
        net.weight.fill_(0.5), net.bias.fill_(0.1)
    net(x).square().sum().backward()
    return torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)


class Doubles(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x[:, 0] * 2

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return torch.nn.functional.pad(grad.unsqueeze(1), (0, 0, 0, x.shape[1] - 1)) * float(x.sum())


# x is cut along dim 1; s, a sum of it, is one number that is still to be summed up over the ranks; p is a Partial of
# [2, 4].
WAYS = {
    "x[:, 0]": lambda x, s, p: x[:, 0],
    "x[0]": lambda x, s, p: x[0],
    "x[:, 1:]": lambda x, s, p: x[:, 1:],
    "x[..., 0]": lambda x, s, p: x[..., 0],
    "x[:, ::2]": lambda x, s, p: x[:, ::2],
    "x[:, -1:]": lambda x, s, p: x[:, -1:],
    "x[:, None]": lambda x, s, p: x[:, None, 2:5],
    "x[mask]": lambda x, s, p: x[x > 3],
    "x[list]": lambda x, s, p: x[:, [0, 5]],
    "x[tensor]": lambda x, s, p: x[:, torch.tensor([8, 0])],
    "p[0]": lambda x, s, p: p[0],
    "p[:, None]": lambda x, s, p: p[:, None],
    "x[s]": lambda x, s, p: x[(s * 0).long()],
    "x[:s]": lambda x, s, p: x[: (s * 0 + 1).long()],
    "x[:, s:]": lambda x, s, p: x[:, (s * 0 + 2).long() :],
    "x[:, 0] = number": lambda x, s, p: changed(x, (slice(None), 0), 7.0),
    "x[:, 1:6] = number": lambda x, s, p: changed(x, (slice(None), slice(1, 6)), 7.0),
    "x[:, 0] = s": lambda x, s, p: changed(x, (slice(None), 0), s),
    "x[:, :4] = tensor": lambda x, s, p: changed(x, (slice(None), slice(4)), torch.ones(2, 4, 4, dtype=torch.float64)),
    "x[:, 2] = p": lambda x, s, p: changed(x, (slice(None), 2), p),
    "x[mask] = number": lambda x, s, p: changed(x, x > 3, 0.5),
    "plain[0] = s": lambda x, s, p: changed(FULL, (0, 0, 0), s),
    "alpha": lambda x, s, p: x.add(x, alpha=s),
    "add_ alpha": lambda x, s, p: x.clone().add_(x, alpha=s),
    "sub alpha": lambda x, s, p: torch.sub(x, x, alpha=s),
    "value": lambda x, s, p: torch.addcmul(x, x, x, value=s),
    "addcdiv": lambda x, s, p: torch.addcdiv(x, x, x + 1, value=s),
    "clamp": lambda x, s, p: x.clamp(max=s),
    "fill_": lambda x, s, p: torch.zeros(2, dtype=torch.float64).fill_(s),
    "pow": lambda x, s, p: (x / 100) ** (s * 0 + 2),
    "lerp": lambda x, s, p: x.lerp(x + 1, s / 5000),
    "where": lambda x, s, p: torch.where(x > s, x, s),
    "mul": lambda x, s, p: FULL * s,
    "full": lambda x, s, p: torch.full((2,), s),
    "zeros": lambda x, s, p: torch.zeros((s * 0 + 2).long()),
    "linspace": lambda x, s, p: torch.linspace(0, s, 3),
    "arange": lambda x, s, p: torch.arange((s * 0 + 4).long()),
    "new_full": lambda x, s, p: FULL.new_full((3,), s),
    "expand": lambda x, s, p: FULL[:, :1].expand(2, (s * 0 + 3).long(), 4),
    "tensor": lambda x, s, p: torch.tensor(s),
    "tensor of list": lambda x, s, p: torch.tensor([s, s]),
    "stack": lambda x, s, p: torch.stack([s, s]),
    "item": lambda x, s, p: s.item(),
    "float": lambda x, s, p: float(s),
    "int": lambda x, s, p: int(s),
    "bool": lambda x, s, p: bool(s > 0),
    "complex": lambda x, s, p: complex(s),
    "index": lambda x, s, p: [1, 2, 3][(s * 0).long()],
    "range": lambda x, s, p: list(range((s * 0 + 2).long())),
    "math": lambda x, s, p: math.sqrt(s),
    "round": lambda x, s, p: round(float(s), 1),
    "format": lambda x, s, p: f"{s:.3f}",
    "in": lambda x, s, p: 3.0 in x,
    "truth of all": lambda x, s, p: bool((x >= 0).all()),
    "equal": lambda x, s, p: torch.equal(x, x + 1),
    "allclose": lambda x, s, p: torch.allclose(x, x * 1),
    "iteration": lambda x, s, p: list(x.transpose(0, 1))[3],
    "unpack": lambda x, s, p: [row for row in x][1],
    "len": lambda x, s, p: len(x),
    "chunk": lambda x, s, p: x.chunk(3, 1)[2],
    "unbind": lambda x, s, p: x.unbind(1)[3],
    "split": lambda x, s, p: x.split([2, 7], 1)[1],
    "nonzero": lambda x, s, p: (x > 60).nonzero(),
    "unique": lambda x, s, p: (x // 10).unique(),
    "max": lambda x, s, p: x.max(1)[0],
    "sort": lambda x, s, p: x.sort(1, descending=True)[0],
    "cumsum": lambda x, s, p: x.cumsum(1),
    "einsum": lambda x, s, p: torch.einsum("bij,bkj->ik", x, x),
    "norm": lambda x, s, p: x.norm(),
    "std": lambda x, s, p: x.std(),
    "data": lambda x, s, p: x.data[:, 3],
    "T": lambda x, s, p: x[0].T[:, 1],
    "type": lambda x, s, p: x.type(torch.float32)[:, 0],
    "to": lambda x, s, p: x.to(torch.float32)[:, 8],
    "round tensor": lambda x, s, p: (x / 7).round(decimals=2)[:, 4],
    "out": lambda x, s, p: torch.sum(x, 1, out=torch.empty(2, 4, dtype=torch.float64)),
    "conv": lambda x, s, p: torch.nn.functional.conv1d(
        x.transpose(1, 2), torch.ones(1, 4, 3, dtype=torch.float64), padding=1
    ),
    "softmax": lambda x, s, p: x.softmax(1),
    "grad": lambda x, s, p: grad_of(x, lambda leaf: (leaf[..., 0] ** 2).sum()),
    "grad of a row": lambda x, s, p: grad_of(x, lambda leaf: (leaf[:, 4] ** 2).sum()),
    "grad by s": lambda x, s, p: grad_of(x, lambda leaf: leaf.add(leaf, alpha=2.0)[:, 0].sum() * leaf.sum()),
    "Function": lambda x, s, p: grad_of(x, lambda leaf: Doubles.apply(leaf).sum()),
    "hook": lambda x, s, p: grad_of(
        x, lambda leaf: [leaf.register_hook(lambda g: g[:, 0:1] * g.sum().item() + g), (leaf**2).sum()][1]
    ),
    "vmap": lambda x, s, p: torch.func.grad(lambda t: (t[:, 0] ** 2).sum())(x),
    "checkpoint": lambda x, s, p: grad_of(
        x, lambda leaf: torch.utils.checkpoint.checkpoint(lambda t: t[:, 0].square().sum(), leaf, use_reentrant=False)
    ),
    "LBFGS": lambda x, s, p: minimized(x),
    "clip_grad_norm_": lambda x, s, p: clipped(x),
    "redistribute": lambda x, s, p: mh.redistribute(x, [mh.Replicate()]) if mh.is_shard_tensor(x) else x,
    "full_tensor": lambda x, s, p: mh.full_tensor(x) if mh.is_shard_tensor(x) else x,
}


def same(ours, plain):
    if not torch.is_tensor(plain):
        return ours == plain or (isinstance(plain, float) and math.isclose(ours, plain, rel_tol=1e-10))
    return (
        torch.is_tensor(ours)
        and ours.shape == plain.shape
        and torch.allclose(ours.double(), plain.double(), rtol=1e-10, atol=1e-12)
    )


def way(name, late):
    """Rank `late` comes some milliseconds after the other has begun to wait. Returns what is wrong."""
    ours, begun = [None] * 2, threading.Event()

    def rank(world):
        mesh = mh.init_device_mesh(world, "cpu", [2])
        x = mh.distribute_tensor(FULL, mesh, [mh.Shard(1, [5, 4])])
        s, p = x.sum(), x.sum(1)
        world.barrier()
        if world.rank == late:
            begun.wait()
            time.sleep(0.01)
        else:
            begun.set()
        result = WAYS[name](x, s, p)
        ours[world.rank] = mh.full_tensor(result) if torch.is_tensor(result) and mh.is_shard_tensor(result) else result

    mh.run_ranks(2, rank)
    plain = WAYS[name](FULL, FULL.sum(), FULL.sum(1))
    return [f"rank {which} has {one}, not {plain}" for which, one in enumerate(ours) if not same(one, plain)]


def late_rank_fails(late):
    """An error of the late rank ends the other, which waits in a function that holds the interpreter, and keeps its
    type."""

    class Mine(Exception):
        pass

    def rank(world):
        x = mh.distribute_tensor(FULL, mh.init_device_mesh(world, "cpu", [2]), [mh.Shard(1, [5, 4])])
        world.barrier()
        if world.rank == late:
            time.sleep(0.01)
            raise Mine("late")
        x.add(x, alpha=x.sum())

    try:
        mh.run_ranks(2, rank)
    except Mine:
        return []
    return ["no error"]


wrong = []
for name, late in [(name, late) for name in WAYS for late in (0, 1)]:
    try:
        wrong += [f"{name}, rank {late} late: {text}" for text in way(name, late)]
    except Exception as error:
        wrong.append(f"{name}, rank {late} late: {type(error).__name__}: {error}")
        if "timed out" in str(error):
            sys.exit(f"FAILED: {wrong[-1]}")  # each of them would cost the time limit
wrong += late_rank_fails(0) + late_rank_fails(1)
for text in wrong:
    print("FAILED:", text)
print("failed" if wrong else f"all well: {len(WAYS)} ways")
sys.exit(len(wrong) > 0)
