# SPDX-License-Identifier: Apache-2.0
"""torch.utils.checkpoint in units of fully_shard that cast their parameters: the same numbers as without it (Y05)."""

import moonhalo as mh
import torch
from refusals import refused
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.utils import checkpoint as recompute

ROWS = [3, 0, 4]  # samples of each rank


def values(shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Net(torch.nn.Module):
    """Segments that call modules, read a parameter as a field, and enclose other segments."""

    def __init__(self, segment):
        super().__init__()
        self.segment = segment
        self.dtypes, self.fails = [], False
        self.first = torch.nn.Linear(6, 8)
        self.norm = torch.nn.LayerNorm(8)
        self.middle = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 8))
        self.again = torch.nn.Sequential(self.middle[0])  # the same module at another place
        self.scale = torch.nn.Parameter(torch.ones(8))
        self.last = torch.nn.Linear(8, 2)
        for number, parameter in enumerate(self.double().parameters()):
            parameter.data.copy_(0.4 * values(parameter.shape, number))

    def scaled(self, x):
        self.dtypes.append(self.scale.dtype)
        if self.fails:
            raise RuntimeError("stop here")
        return self.segment(self.again, self.norm(x)) * self.scale

    def forward(self, x):
        h = self.segment(self.first, x)
        h = self.segment(self.middle, h) + self.segment(self.scaled, h)
        return self.last(h)


SEGMENTS = {
    "none": lambda fn, *args: fn(*args),
    "use_reentrant=False": lambda fn, *args: recompute.checkpoint(fn, *args, use_reentrant=False),
    "use_reentrant=True": lambda fn, *args: recompute.checkpoint(fn, *args, use_reentrant=True),
    "no early stop": lambda fn, *args: recompute.checkpoint(fn, *args, use_reentrant=False, early_stop=False),
}


def made(mesh, segment, dtype, units, **options):
    net = Net(segment)
    given = {"mesh": mesh, "min_numel": 1, "mp_policy": MixedPrecisionPolicy(param_dtype=dtype), **options}
    for name in units:
        mh.fully_shard(net.get_submodule(name), **given)
    return mh.fully_shard(net, **given)


def whole(tensor):
    return mh.full_tensor(tensor) if mh.is_shard_tensor(tensor) else tensor


def trained(net, x, steps=2):
    """Results, gradients and parameters; None where there is no gradient."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.125)
    seen = []
    for _ in range(steps):
        optimizer.zero_grad()
        y = net(x)
        y.double().square().mean().backward()
        seen += [y] + [parameter.grad for parameter in net.parameters()]
        optimizer.step()
    return [None if one is None else whole(one).detach().clone() for one in seen + list(net.parameters())]


def same(a, b, eps):
    return a is not None and b is not None and torch.allclose(a, b, rtol=4 * eps, atol=4 * eps)


def bits(mesh, x, expect):
    ways = {
        "one unit": {"dtype": torch.bfloat16, "units": ()},
        "float32": {"dtype": torch.float32, "units": ()},
        "segments that are units": {"dtype": torch.bfloat16, "units": ("first", "middle.0", "last")},
        "units in segments": {"dtype": torch.bfloat16, "units": ("middle.2", "norm")},
        "kept": {"dtype": torch.bfloat16, "units": ("norm",), "reshard_after_forward": False},
        "no casts": {"dtype": None, "units": ("first",)},
    }
    for what, way in ways.items():
        expected = None
        for how, segment in SEGMENTS.items():
            net = made(mesh, segment, **way)
            # A reentrant segment gives no gradient without an input that requires one, as in PyTorch.
            seen = trained(net, x.clone().requires_grad_())
            expected = expected or seen
            # Reentrant segments add the gradients of a module that two of them use after the cast, the others before.
            eps = torch.finfo(way["dtype"] or x.dtype).eps if how == "use_reentrant=True" else 0
            other = [number for number, pair in enumerate(zip(seen, expected)) if not same(*pair, eps)]
            expect(len(seen) == len(expected) and not other, f"checkpoint, {what}, {how}: other values, {other}")
            expect(
                len(net.dtypes) == (2 if how == "none" else 4) and set(net.dtypes) == {way["dtype"] or torch.float64},
                f"checkpoint, {what}, {how}: dtypes {net.dtypes}",
            )
            expect(
                all(one.dtype == torch.float64 for one in net.parameters()) and net.again[0] is net.middle[0],
                f"checkpoint, {what}, {how}: parameters are back in their places",
            )


def errors(mesh, x, expect):
    x = x.clone().requires_grad_()
    for how in ("use_reentrant=False", "use_reentrant=True"):
        net = made(mesh, SEGMENTS[how], torch.bfloat16, ())
        before = dict(net.named_parameters())
        net.fails = True
        refused(expect, f"{how}: a segment that throws", RuntimeError, "stop here", lambda: net(x))
        net.fails = False
        y = net(x)
        net.fails = True
        refused(expect, f"{how}: backward", RuntimeError, "stop here", y.double().sum().backward)
        after = dict(net.named_parameters())
        expect(all(after[name] is one for name, one in before.items()), f"{how}: parameters after errors")


def plain(expect):
    """Modules without units: checkpoint of PyTorch as it is."""
    for how, segment in SEGMENTS.items():
        x = values((4, 6), 9).requires_grad_()
        net = Net(segment)
        y = net(x)
        y.square().mean().backward()
        other = Net(SEGMENTS["none"])
        other(x).square().mean().backward()
        expect(all(torch.equal(a.grad, b.grad) for a, b in zip(net.parameters(), other.parameters())), f"plain, {how}")


def rank(mesh, expect):
    begin = sum(ROWS[: mesh.rank])
    mine = values((sum(ROWS), 6), 70)[begin : begin + ROWS[mesh.rank]].clone()
    bits(mesh, mine, expect)
    errors(mesh, mine, expect)
    plain(expect)
