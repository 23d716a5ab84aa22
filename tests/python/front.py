# SPDX-License-Identifier: Apache-2.0
"""Layers of torch.nn in front of blocks (N36): the oracle is the same program on one plain tensor; what nobody would
sum is refused on all ranks."""

import moonhalo as mh
import torch
from refusals import refused
from torch.utils.checkpoint import checkpoint

SIZES = [2, 0, 4]
ROWS = sum(SIZES)


def values(shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def filled(net, seed):
    with torch.no_grad():
        for number, parameter in enumerate(net.parameters()):
            parameter.copy_(0.4 * values(parameter.shape, seed + number))
    return net


class Front(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 6).double(), torch.nn.Linear(6, 6).double()
        self.scale = torch.nn.Parameter(torch.ones(6, dtype=torch.float64))

    def forward(self, x):
        return torch.tanh(self.second(torch.tanh(self.first(x)) * self.scale))


def front():
    return filled(Front(), 10)


def back():
    return filled(torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.GELU(), torch.nn.Linear(5, 3)).double(), 20)


def of_slopes(loss, parameters):
    slopes = torch.autograd.grad(loss, parameters, create_graph=True)
    return loss + sum(slope.square().sum() for slope in slopes)


# name: (a, b, x, block) -> loss; `block` makes a tensor of all ranks, cut along dim 0, of this rank's rows.
PROGRAMS = {
    "layers": lambda a, b, x, block: b(block(a(x))).square().mean(),
    "a penalty": lambda a, b, x, block: b(block(a(x))).square().mean() + 0.1 * a.first.weight.square().sum(),
    "several blocks": lambda a, b, x, block: (lambda h: (b(block(h)) * b(block(2 * h))).sum())(a(x)),
    "checkpoint": lambda a, b, x, block: checkpoint(lambda t: b(block(a(t))).square().mean(), x, use_reentrant=False),
    "checkpoint of the rest": lambda a, b, x, block: checkpoint(
        lambda h: b(block(h)).square().mean(), a(x), use_reentrant=False
    ),
    "slopes of the front": lambda a, b, x, block: of_slopes(b(block(a(x))).square().mean(), list(a.parameters())),
    "slopes of the rest": lambda a, b, x, block: of_slopes(b(block(a(x))).square().mean(), list(b.parameters())),
    "without gradients": lambda a, b, x, block: b(block(a(x).detach())).square().mean() + a(x.new_zeros(1, 4)).sum(),
}


def train(program, x, block):
    a, b = front(), back()
    parameters = list(a.parameters()) + list(b.parameters())
    optimizer = torch.optim.Adam(parameters, lr=0.05)
    seen = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = program(a, b, x, block)
        loss.backward()
        seen += [mh.full_tensor(loss) if mh.is_shard_tensor(loss) else loss]
        seen += [parameter.grad.clone() for parameter in parameters]
        optimizer.step()
    return [tensor.detach() for tensor in seen + parameters]


def close(a, b):
    return len(a) == len(b) and all(torch.allclose(x, y, rtol=1e-9, atol=1e-12) for x, y in zip(a, b))


def rank(mesh, expect):
    x = values((ROWS, 4), 1)
    begin = sum(SIZES[: mesh.rank])
    mine = x[begin : begin + SIZES[mesh.rank]]

    def cut(h):
        return mh.from_local(h, mesh, [mh.Shard(0)])

    def addend(h):
        before, behind = h.new_zeros(begin, 6), h.new_zeros(ROWS - begin - h.shape[0], 6)
        return mh.from_local(torch.cat([before, h, behind]), mesh, [mh.Partial()])

    for name, program in PROGRAMS.items():
        expected = train(program, x, lambda h: h)
        expect(close(train(program, mine, cut), expected), f"front: {name}")
        if name == "slopes of the front":
            check_refused(expect, name, "no gradients of gradients", lambda: train(program, mine, addend))
        else:
            expect(close(train(program, mine, addend), expected), f"front: {name}, as an addend")

    # In the middle: plain layers between two parts.
    def middle(a, b, t, block):
        inner = torch.tanh(block(t)[:, [0, 1, 2, 3]])
        return b(block(a(mh.to_local(inner) if mh.is_shard_tensor(inner) else inner))).square().mean()

    expect(close(train(middle, mine, cut), train(middle, x, lambda h: h)), "front: in the middle")

    # Rows of this rank alone keep their own gradients.
    own, whole = mine.clone().requires_grad_(), x.clone().requires_grad_()
    back()(cut(front()(own))).square().mean().backward()
    back()(front()(whole)).square().mean().backward()
    expect(torch.allclose(own.grad, whole.grad[begin : begin + SIZES[mesh.rank]], rtol=1e-9), "front: own rows")

    refusals(mesh, expect, mine, cut)


def check_refused(expect, what, text, call):
    refused(expect, f"front: {what}", (ValueError, NotImplementedError), [text, "fix"], call)


def refusals(mesh, expect, mine, cut):
    alike = values((4, 6), 3).requires_grad_()
    check_refused(expect, "a tensor that is not a parameter", "is the same on all ranks", lambda: cut(mine @ alike))
    apart = values((4, 6), 3 + mesh.rank).requires_grad_()
    back()(cut(mine @ apart)).sum().backward()
    check_refused(
        expect, "a step of a tensor that is not a parameter", "is in no module", torch.optim.SGD([apart], lr=0.1).step
    )

    other = front()
    if mesh.rank == 2:
        with torch.no_grad():
            other.second.bias[3] += 1
    check_refused(expect, "weights that differ", "is not the same on all ranks", lambda: cut(other(mine)))

    root = lambda: front()(values((ROWS, 4), 1)) if mesh.rank == 0 else None
    check_refused(
        expect,
        "scatter_tensor",
        "alone would have their gradients",
        lambda: mh.scatter_tensor(root(), mesh, [mh.Shard(0)]),
    )

    a, b = front(), back()
    loss = checkpoint(lambda h: b(cut(h)).square().mean(), a(mine), use_reentrant=True)
    check_refused(expect, "a reentrant checkpoint", "use_reentrant=False", loss.backward)

    strength = 2 * front().scale[:4]
    check_refused(
        expect,
        "what is combined with ShardTensors too",
        "is combined with ShardTensors",
        lambda: cut(mine * strength).sum() + strength.sum(),
    )
