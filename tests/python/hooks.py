# SPDX-License-Identifier: Apache-2.0
"""Every kind of gradient hook, set before, between and after the first use, beside the same on plain tensors (X15,
S27)."""

import moonhalo as mh
import torch
from blocks import rows_of
from torch.autograd.graph import register_multi_grad_hook

FULL = torch.arange(33, dtype=torch.float64).sin().reshape(11, 3)


class Log:
    """What hooks saw, in their order, and how often."""

    def __init__(self):
        self.seen = []

    def hook(self, name, change):
        def called(grad):
            self.seen.append((name, grad.detach().clone()))
            return change(grad)

        return called

    def quiet(self, name):
        """For hooks whose result is not used."""
        return lambda *args: self.seen.append((name, None))


def node_of(leaf):
    return leaf.expand_as(leaf).grad_fn.next_functions[0][0]


# kind: (log, leaf) -> a handle. The last of a leaf's hooks says what its gradient is; all see the changes of those
# before.
def tensor_hook(log, leaf):
    return leaf.register_hook(log.hook("hook", lambda g: g * 3))


def clamping_hook(log, leaf):
    return leaf.register_hook(log.hook("clamp", lambda g: g.clamp(-0.5, 0.5)))


def post_accumulate_hook(log, leaf):
    def called(tensor):
        log.seen.append(("post", tensor.grad.detach().clone()))
        with torch.no_grad():
            tensor.grad.mul_(5)

    return leaf.register_post_accumulate_grad_hook(called)


def node_prehook(log, leaf):
    node = node_of(leaf)
    log.kept = node  # PyTorch's own rule: a node's hooks live as long as the node
    return node.register_prehook(lambda grads: tuple(log.hook("prehook", lambda g: g + 1)(g) for g in grads))


def node_posthook(log, leaf):
    node = node_of(leaf)
    log.kept = node
    return node.register_hook(lambda *args: log.quiet("posthook")())


def multi_hook(log, leaf):
    return register_multi_grad_hook([leaf], log.quiet("multi"))


KINDS = [tensor_hook, clamping_hook, post_accumulate_hook, node_prehook, node_posthook, multi_hook]
BEFORE, BETWEEN, AFTER = range(3)


def steps(x, log, attach, removed, through):
    """Three steps; `attach` says which hooks come when in the first, `removed` that the first of them goes after the
    second. `through`: whether the weight enters as itself, by a view, or is used alone first."""
    x = x.detach().requires_grad_()
    w = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64, requires_grad=True)
    handles, results = [], []

    def set_hooks(time):
        for kind, when in attach:
            if when == time:
                handles.extend(kind(log, leaf) for leaf in (w, x))

    set_hooks(BEFORE)
    for step in range(3):
        weight = {"itself": lambda: w, "view": lambda: w.view(1, 3), "plain": lambda: w}[through]()
        loss = (w * w).sum() if through == "plain" and step == 2 else ((x * weight).tanh() + x).square().sum()
        if step == 0:
            set_hooks(BETWEEN)
        loss.backward()
        if step == 0:
            set_hooks(AFTER)
        if step == 1 and removed:
            for handle in handles[:2]:
                handle.remove()
        for leaf in (w, x):
            results.append(leaf.grad)
            leaf.grad = None
    return results


def inner(x, log):
    """Hooks of results, plain and cut, and of their nodes."""
    x = x.detach().requires_grad_()
    w = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64, requires_grad=True)
    h = w * 2
    h.register_hook(log.hook("plain result", lambda g: g * 2))
    h.retain_grad()
    h.grad_fn.register_prehook(lambda grads: tuple(log.hook("prehook", lambda g: g - 1)(g) for g in grads))
    h.grad_fn.register_hook(lambda inputs, outputs: log.quiet("posthook")())
    y = x * h
    h.register_hook(log.hook("plain result, later", lambda g: g.clamp(-3, 3)))
    y.register_hook(log.hook("cut result", lambda g: g * 0.5))
    y.retain_grad()
    first, second = w.split([1, 2])  # two results of one node
    second.register_hook(log.hook("second", lambda g: g * 7))
    first.register_hook(log.hook("first", lambda g: g + 2))
    loss = (y.tanh() * first).sum() + (x[:, 1:] * second).square().sum()
    loss.backward()
    return [w.grad, x.grad, h.grad, y.grad]


def asked(x, log):
    """Gradients that are asked for, of leaves and of results."""
    x = x.detach().requires_grad_()
    w = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64, requires_grad=True)
    w.register_hook(log.hook("w", lambda g: g * 0.25))
    h = w.exp()
    h.register_hook(log.hook("h", lambda g: g * 2))
    loss = (x * h * w).square().sum()
    x.register_hook(log.hook("x", lambda g: -g))
    alone = torch.autograd.grad(loss, w, retain_graph=True)
    only_result = torch.autograd.grad(loss, h, retain_graph=True)
    torch.autograd.backward(loss, inputs=[x], retain_graph=True)
    some, w.grad, x.grad = [x.grad], None, None
    (slope,) = torch.autograd.grad(loss, w, create_graph=True)
    slope.square().sum().backward()
    return [*alone, *only_result, *some, w.grad]


def modules(x, log):
    """Hooks of modules, and of their weights."""
    torch.manual_seed(3)
    net = torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.LayerNorm(4), torch.nn.Linear(4, 2)
    ).double()
    with torch.no_grad():
        for number, weight in enumerate(net.parameters()):
            weight.copy_(torch.arange(weight.numel(), dtype=torch.float64).add(number).cos().reshape(weight.shape))
    net[0].weight.register_hook(log.hook("weight", lambda g: g.clamp(-1, 1)))
    net[3].bias.register_hook(log.hook("bias", lambda g: g * 0))
    net[1].register_full_backward_pre_hook(lambda module, grads: log.quiet("pre")())
    net[0].register_full_backward_hook(lambda module, inputs, outputs: log.quiet("full")())
    net[2].register_full_backward_hook(lambda module, inputs, outputs: tuple(g * 2 for g in inputs))
    net[3].register_forward_hook(lambda module, inputs, output: output * 3)
    net[2].register_forward_pre_hook(lambda module, inputs: (inputs[0] + 1,))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    for _ in range(2):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
        net[2].weight.register_hook(log.hook("norm", lambda g: g + 1))
    return [weight.grad for weight in net.parameters()] + [weight.detach() for weight in net.parameters()]


def whole(tensor):
    return mh.full_tensor(tensor) if tensor is not None and mh.is_shard_tensor(tensor) else tensor


def same(a, b):
    a = whole(a)
    return (a is None and b is None) or (
        a is not None and b is not None and a.shape == b.shape and torch.allclose(a, b, rtol=1e-10, atol=1e-12)
    )


def compare(mesh, expect, name, program, *options):
    ours, theirs = Log(), Log()
    cut = mh.distribute_tensor(FULL, mesh, [mh.Shard(0, rows_of(mesh, [5, 0, 6]))])
    mine, plain = program(cut, ours, *options), program(FULL.clone(), theirs, *options)
    order, wanted = [each for each, _ in ours.seen], [each for each, _ in theirs.seen]
    expect(order == wanted, f"{name}: order {order} is {wanted}")
    for (which, a), (_, b) in zip(ours.seen, theirs.seen):
        expect(same(a, b), f"{name}: {which} saw {a}, not {b}")
        # A weight's hooks see plain tensors, as those of a program without cut tensors do.
        expect(a is None or a.shape != (3,) or not mh.is_shard_tensor(a), f"{name}: {which} saw {a!r}")
    expect(len(mine) == len(plain) and all(same(a, b) for a, b in zip(mine, plain)), f"{name}: {mine} is not {plain}")
    expect(
        not any(a is not None and a.shape == (3,) and mh.is_shard_tensor(a) for a in mine),
        f"{name}: a weight's gradient is plain",
    )


def programs(mesh, expect):
    """One program of each sort."""
    compare(mesh, expect, "several", steps, [(kind, BETWEEN) for kind in KINDS], True, "itself")
    compare(mesh, expect, "inner", inner)
    compare(mesh, expect, "asked", asked)
    compare(mesh, expect, "modules", modules)


def rank(mesh, expect):
    def beside(*program):
        compare(mesh, expect, *program)

    for when in (BEFORE, BETWEEN, AFTER):
        for through in ("itself", "view", "plain"):
            for kind in KINDS:
                beside(f"{kind.__name__} {when} {through}", steps, [(kind, when)], True, through)
        beside(f"several {when}", steps, [(kind, when) for kind in KINDS], False, "itself")
        beside(f"several, backwards {when}", steps, [(kind, when) for kind in reversed(KINDS)], True, "itself")
    beside(
        "one after the other",
        steps,
        [(tensor_hook, BEFORE), (clamping_hook, BETWEEN), (tensor_hook, AFTER)],
        True,
        "itself",
    )
    programs(mesh, expect)
