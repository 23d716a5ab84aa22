# SPDX-License-Identifier: Apache-2.0
"""Loops as programs of PyTorch have them, beside the same of plain tensors: optimizers, schedulers, AMP, DataLoader,
checkpoints of activations, indices (Y05)."""

import moonhalo as mh
import torch
import torch.nn.functional as F
from blocks import rows_of
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

ROWS = [4, 0, 5]  # on three ranks
FULL = torch.arange(9 * 6, dtype=torch.float64).sin().reshape(9, 6)


def net(dtype=torch.float64):
    made = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 6)).to(
        dtype
    )
    with torch.no_grad():
        for number, parameter in enumerate(made.parameters()):
            parameter.copy_(torch.arange(parameter.numel()).add(number).cos().mul(0.4).reshape(parameter.shape))
    return made


def whole(tensor):
    return mh.full_tensor(tensor) if mh.is_shard_tensor(tensor) else tensor


def close(a, b, rtol=1e-9, atol=1e-12):
    return len(a) == len(b) and all(
        torch.allclose(whole(one).detach(), whole(other).detach(), rtol=rtol, atol=atol) for one, other in zip(a, b)
    )


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, foreach=False),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "Adadelta": lambda p: torch.optim.Adadelta(p, lr=1.0),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.1),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.5, max_iter=3),
    "Adam (fused)": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
}


def train(made, make, x):
    optimizer = make(made.parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
    losses = []

    def loss_of():
        optimizer.zero_grad()
        loss = F.mse_loss(made(x), 0.5 * x)
        loss.backward()
        return loss

    for _ in range(3):
        losses.append(optimizer.step(loss_of).detach())
        schedule.step()
    return losses + list(made.parameters())


def optimizers(mesh, expect, names=tuple(OPTIMIZERS)):
    x = mh.distribute_tensor(FULL, mesh, [mh.Shard(0, rows_of(mesh, ROWS))])
    for name in names:
        make = OPTIMIZERS[name]
        expected = train(net(), make, FULL)
        expect(close(train(net(), make, x), expected), f"{name}: plain parameters")
        expect(
            (
                close(
                    train(
                        mh.parallelize_module(
                            net(),
                            mesh,
                            {
                                "parameter": {
                                    "0.weight": [mh.Shard(0, rows_of(mesh, [5, 0, 3]))],
                                    "3.weight": [mh.Shard(1)],
                                }
                            },
                        ),
                        make,
                        FULL,
                    ),
                    expected,
                )
                if "fused" not in name
                else True
            ),
            f"{name}: ShardTensors",
        )


def mixed(mesh, expect):
    """AMP: the same cast operators as on plain tensors, and a scaler that skips a step on all ranks."""
    x = mh.distribute_tensor(FULL.float(), mesh, [mh.Shard(0, rows_of(mesh, ROWS))])

    def run(t):
        made = net(torch.float32)
        optimizer, scaler = (
            torch.optim.SGD(made.parameters(), lr=0.1),
            torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=2),
        )
        seen = []
        for step in range(4):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out = made(t)
                loss = (out - t).square().mean()
            seen += [out.dtype, loss.dtype]
            scaler.scale(loss * (float("inf") if step == 1 else 1.0)).backward()
            scaler.unscale_(optimizer)
            mh.clip_grad_norm_(made.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            seen.append(scaler.get_scale())
        return seen, list(made.parameters())

    seen, parameters = run(x)
    expected, plain = run(FULL.float())
    expect(seen == expected and torch.bfloat16 in seen, f"AMP: dtypes and scales {seen} {expected}")
    expect(close(parameters, plain, rtol=1e-2, atol=1e-3), "AMP: parameters")


def loaders(mesh, expect):
    """A DataLoader gives each rank its own samples; or the same to all, which scatter_tensor cuts along another dim."""
    sizes = rows_of(mesh, ROWS)
    begin = sum(sizes[: mesh.rank])
    plain, made = net(), mh.replicate(net(), mesh=mesh)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (plain, made)]
    everything = DataLoader(TensorDataset(torch.cat([FULL, FULL + 1]), torch.cat([FULL, FULL * 2])), batch_size=9)
    rows = slice(begin, begin + sizes[mesh.rank])
    for x, y in everything:
        for one, optimizer, pair in (
            (plain, optimizers[0], (x, y)),
            (made, optimizers[1], (x[rows].clone(), mh.local_batch(y[rows].clone(), mesh))),
        ):
            optimizer.zero_grad()
            F.mse_loss(one(pair[0]), pair[1]).backward()
            optimizer.step()
    expect(close(list(made.parameters()), list(plain.parameters())), "DataLoader: own samples")
    total = []
    for x, _ in everything:
        total.append(mh.scatter_tensor(x, mesh, [mh.Shard(1)]).sum().item())
    expect(abs(sum(total) - (2 * FULL + 1).sum().item()) < 1e-9, "DataLoader: cut fields")


def activations(mesh, expect):
    x = mh.distribute_tensor(FULL, mesh, [mh.Shard(0, rows_of(mesh, ROWS))])
    for reentrant in (False, True):
        made, plain = net(), net()
        leaf, whole_leaf = x.detach().requires_grad_(), FULL.clone().requires_grad_()
        for one, t in ((made, leaf), (plain, whole_leaf)):
            checkpoint(one, t, use_reentrant=reentrant).square().sum().backward()
        expect(
            close(
                [leaf.grad] + [one.grad for one in made.parameters()],
                [whole_leaf.grad] + [one.grad for one in plain.parameters()],
            ),
            f"checkpoint, use_reentrant={reentrant}",
        )


INDICES = {
    "a row": lambda t: t[4],
    "a column": lambda t: t[:, -1],
    "rows": lambda t: t[2:8:2],
    "back": lambda t: t.flip(0)[1:],
    "none": lambda t: t[None, 3:],
    "ellipsis": lambda t: t[..., 1:3],
    "numbers": lambda t: t[[8, 0, 4, 4]],
    "a tensor": lambda t: t[torch.tensor([[1, 5], [8, 2]])],
    "pairs": lambda t: t[torch.tensor([0, 8, 3]), torch.tensor([5, 0, 2])],
    "a mask": lambda t: t[FULL[:, 0] > 0],
    "a row alone": lambda t: t[0, 2],
    "iteration": lambda t: torch.stack([row.sum() for row in t]),
    "split": lambda t: torch.cat(t.split([4, 5])[::-1]),
    "unbind": lambda t: torch.stack(t.unbind(1)[::2]),
    "chunk": lambda t: t.chunk(4)[1],
    "where": lambda t: torch.where(t > 0, t, -2 * t),
}


def written(t):
    """What a program writes in place."""
    y = t * 1
    y[3] = 7.0
    y[:, 1:3] += y[:, 2:4].clone()
    y[torch.tensor([0, 8])] = y[torch.tensor([4, 5])] * 2
    y[FULL > 0.9] = 0.5
    y[..., -1].mul_(3)
    return y


def indices(mesh, expect):
    for name, of in {**INDICES, "in place": written}.items():
        leaf, plain = (
            mh.distribute_tensor(FULL, mesh, [mh.Shard(0, rows_of(mesh, ROWS))]).requires_grad_(),
            FULL.clone().requires_grad_(),
        )
        for t in (leaf, plain):
            of(t).square().sum().backward()
        expect(close([of(leaf), leaf.grad], [of(plain), plain.grad]), f"index: {name}")


def rank(mesh, expect):
    optimizers(mesh, expect)
    mixed(mesh, expect)
    loaders(mesh, expect)
    activations(mesh, expect)
    indices(mesh, expect)
