# SPDX-License-Identifier: Apache-2.0
"""Every kind of gradient hook, set before, between and after the first use, beside the same on plain tensors (X15,
S27)."""

import moonhalo as mh
import torch
from blocks import rows_of
from refusals import refused
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


def small_net():
    torch.manual_seed(3)
    net = torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.LayerNorm(4), torch.nn.Linear(4, 2)
    ).double()
    with torch.no_grad():
        for number, weight in enumerate(net.parameters()):
            weight.copy_(torch.arange(weight.numel(), dtype=torch.float64).add(number).cos().reshape(weight.shape))
    return net


def modules(x, log):
    """Hooks of modules, and of their weights."""
    net = small_net()
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


# ---- Parameters of units and of plans --------------------------------------------------------------------------------


def stored(net, mesh):
    """Parameters that fully_shard keeps as they are, with the hooks that they have."""
    for module in net:
        for name, weight in list(module.named_parameters()):
            new = torch.nn.Parameter(mh.distribute_tensor(weight.detach(), mesh, [mh.Stored(0)]))
            setattr(module, name, new)
    return net


def nested(net, mesh):
    mh.fully_shard(net[0], mesh=mesh, min_numel=1)
    return mh.fully_shard(net, mesh=mesh, min_numel=1)


def without_sums(net, mesh):
    net = mh.fully_shard(net, mesh=mesh, min_numel=1)
    mh.set_requires_gradient_sync(net, False)
    return net


SPLIT = {"parameter": {"0.weight": [mh.Shard(1)], "3.weight": [mh.Shard(0)]}}
UNITS = {  # those of which hooks are called at the end of backward, and the others
    "fully_shard": lambda net, mesh: mh.fully_shard(net, mesh=mesh, min_numel=1),
    "fully_shard, some copied": lambda net, mesh: mh.fully_shard(net, mesh=mesh, min_numel=8),
    "nested": nested,
    "small buckets": lambda net, mesh: mh.fully_shard(net, mesh=mesh, min_numel=1, bucket_cap_mb=1e-5),
}
PLACED = {
    "kept": lambda net, mesh: mh.fully_shard(net, mesh=mesh, min_numel=1, reshard_after_backward=False),
    "without sums": without_sums,
    "replicate": lambda net, mesh: mh.replicate(net, mesh=mesh),
    "a plan": lambda net, mesh: mh.parallelize_module(net, mesh, SPLIT),
    "distribute_module": lambda net, mesh: mh.distribute_module(net, mesh),
}


def placed_steps(x, log, place, kinds, late):
    """Steps of two passes, hooks set before or, `late`, after the first; the gradient of the first step stays for the
    second. Half of the hooks go after it. In which order the gradients of two weights of one operator come is not
    said."""
    net = place(small_net()) if mh.is_shard_tensor(x) else small_net()
    logs = [Log() for _ in net.parameters()]
    handles, results = [], []
    for step in range(4):
        for factor in (1.0, 0.5):
            if step == 0 and factor == (0.5 if late else 1.0):
                handles = [kind(one, weight) for kind in kinds for one, weight in zip(logs, net.parameters())]
            net(x * factor).square().mean().backward()
        results += [weight.grad.detach().clone() for weight in net.parameters()]
        if step == 1:
            for handle in handles[::2]:
                handle.remove()
        if step > 0:
            net.zero_grad()
    log.seen = [seen for one in logs for seen in one.seen]
    return results


def steps_in_backward(x, log, place):
    """An optimizer for each parameter, which steps as soon as there is a gradient."""
    net = place(small_net()) if mh.is_shard_tensor(x) else small_net()
    optimizers = {weight: torch.optim.AdamW([weight], lr=0.05) for weight in net.parameters()}

    def step(weight):
        optimizers[weight].step()
        weight.grad = None

    for weight in net.parameters():
        weight.register_post_accumulate_grad_hook(step)
    for _ in range(3):
        loss = net(x).square().mean()
        log.seen.append(("loss", loss.detach().clone()))
        loss.backward()
    return [weight.grad for weight in net.parameters()] + [weight.detach() for weight in net.parameters()]


def placed_before(x, log, mesh):
    """Hooks of parameters that fully_shard keeps are those of the unit's."""
    ours = mh.is_shard_tensor(x)
    net = stored(small_net(), mesh) if ours else small_net()
    logs = [Log() for _ in net.parameters()]
    handles = [post_accumulate_hook(one, weight) for one, weight in zip(logs, net.parameters())]
    if ours:
        weights = list(net.parameters())
        mh.fully_shard(net, mesh=mesh, min_numel=1)
        assert all(a is b for a, b in zip(weights, net.parameters()))
    for step in range(3):
        net(x).square().mean().backward()
        handles[step].remove()
    log.seen = [seen for one in logs for seen in one.seen]
    return [weight.grad for weight in net.parameters()]


def one_rank_alone(mesh, expect):
    """A hook that one rank alone has changes no message."""
    for name, place in UNITS.items():
        nets, seen = (small_net(), place(small_net(), mesh)), []
        if mesh.rank == 0:
            for weight in nets[1].parameters():
                weight.register_post_accumulate_grad_hook(
                    lambda w, seen=seen: seen.append((w.grad.placements, w.placements))
                )
        cut = mh.distribute_tensor(FULL, mesh, [mh.Shard(0, rows_of(mesh, [5, 0, 6]))])
        for net, x in zip(nets, (FULL, cut)):
            net(x).square().mean().backward()
        expect(len(seen) == (6 if mesh.rank == 0 else 0), f"one rank alone, {name}: {seen}")
        # The gradient of a copy is still a sum, which is reduced after the hook.
        as_kept = all(grad == (own if own[0].is_stored else [mh.Partial()]) for grad, own in seen)
        expect(as_kept, f"one rank alone, {name}: gradients are in blocks, those of copies sums: {seen}")
        for plain, ours in zip(nets[0].parameters(), nets[1].parameters()):
            expect(same(ours.grad, plain.grad), f"one rank alone, {name}: gradients")


def errors(mesh, expect):
    cut = mh.distribute_tensor(FULL, mesh, [mh.Shard(0, rows_of(mesh, [5, 0, 6]))])
    for name, place in UNITS.items():
        net, plain = place(small_net(), mesh), small_net()

        def throws(weight):
            raise LookupError("of the hook")

        def step(net=net):
            net(cut).square().mean().backward()

        hook = net[2].weight.register_post_accumulate_grad_hook(throws)
        refused(expect, f"{name}: a hook that throws", LookupError, "of the hook", step)
        hook.remove()
        net.zero_grad()
        step()
        plain(FULL).square().mean().backward()
        for ours, weight in zip(net.parameters(), plain.parameters()):
            expect(same(ours.grad, weight.grad), f"{name}: after a hook that throws")
        node = node_of(net[0].weight)
        node.register_hook(lambda *grads: None)
        refused(expect, f"{name}: a node", NotImplementedError, "parameter.register_post_accumulate_grad_hook", step)


def placed(mesh, expect):
    for name, place in {**UNITS, **PLACED}.items():

        def on_mesh(net, place=place):
            return place(net, mesh)

        for kind in KINDS:
            if kind is node_posthook and name in UNITS:
                continue
            late = kind is post_accumulate_hook
            for when in {False, late}:
                compare(mesh, expect, f"{name}, {kind.__name__} {when}", placed_steps, on_mesh, [kind], when)
        if name not in UNITS:
            compare(mesh, expect, f"{name}, several", placed_steps, on_mesh, KINDS, True)
        compare(mesh, expect, f"{name}, steps in backward", steps_in_backward, on_mesh)
    compare(mesh, expect, "hooks before fully_shard", placed_before, mesh)
    one_rank_alone(mesh, expect)
    errors(mesh, expect)


def programs(mesh, expect):
    """One program of each sort."""
    compare(mesh, expect, "steps in backward", steps_in_backward, lambda net: UNITS["nested"](net, mesh))
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
    placed(mesh, expect)
