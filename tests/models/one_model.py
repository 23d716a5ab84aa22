# SPDX-License-Identifier: Apache-2.0
"""One model of a table in this process: on plain tensors, then cut over rank threads, compared in float64. Writes a
JSON of its cases. usage: one_model.py FAMILY NAME FILE.json [all | plain]     all: each cut on each number of ranks;
plain: on plain tensors alone, to try a row"""

import contextlib
import copy
import importlib
import json
import math
import sys
import traceback
import warnings

import torch
import torch.overrides

import moonhalo as mh
from table import grid_of, made

TOLERANCE = 1e-9
# Where rounding of the input alone moves a plain run by more than a hundredth of the tolerance, a cut run may move as
# far.
ILL_CONDITIONED, WORST_CONDITION = 100.0, 1e-6
# Gradients that are zero but for rounding (a bias before a norm) are measured by the largest gradient of all.
SMALL = 1e-4
SEED = 20


WIDE = {torch.float32: torch.float64, torch.complex64: torch.complex128}


class KeepDouble(torch.overrides.TorchFunctionMode):
    """Casts to float32 inside a model keep float64, so that its numbers can be compared to 1e-9."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.float:
            function = torch.Tensor.double
        wide = [WIDE.get(one, one) if isinstance(one, torch.dtype) else one for one in args]
        named = {
            key: WIDE.get(one, one) if isinstance(one, torch.dtype) else one for key, one in (kwargs or {}).items()
        }
        return function(*wide, **named)


def uneven(length, ranks):
    """Blocks of no simple ratio; an empty one where the dim is short."""
    if length < 2 * ranks:
        return [length] + [0] * (ranks - 1) if ranks == 2 else [length - length // 2, 0, length // 2]
    first = max(1, (length * (27 if ranks == 2 else 19)) // 64)
    if ranks == 2:
        return [first, length - first]
    second = max(1, (length * 25) // 64)
    return [first, second, length - first - second]


def tensors_of(value):
    """All tensors of what a model returns, in the order of the structure."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    elif not isinstance(value, (list, tuple)):
        value = list(vars(value).values()) if hasattr(value, "__dict__") else []
    return [tensor for one in value for tensor in tensors_of(one)]


def in_double(net):
    """Module.double() leaves complex numbers as they are."""
    net = net.double()
    for one in (*net.parameters(), *net.buffers()):
        if one.dtype in WIDE:
            one.data = one.data.to(WIDE[one.dtype])
    return net


def with_numbers(net):
    """Weights that are all the same number (zeros, layer scales) hide what stands behind them: they get others."""
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for weight in net.parameters():
            if weight.is_floating_point() and (weight == weight.flatten()[0]).all():
                start = weight.flatten()[0] if weight.flatten()[0].abs() > 0.5 else 0.0
                weight.copy_(start + 0.2 * torch.randn(weight.shape, generator=generator, dtype=weight.dtype))
    return net


def as_named(inputs):
    """Inputs as {place or name: value}."""
    return (
        dict(enumerate(inputs))
        if isinstance(inputs, (list, tuple))
        else inputs
        if isinstance(inputs, dict)
        else {0: inputs}
    )


def called(model, net, given):
    by_place = [given[key] for key in sorted(key for key in given if isinstance(key, int))]
    by_name = {key: value for key, value in given.items() if not isinstance(key, int)}
    return tensors_of(getattr(net, model.method)(*by_place, **by_name))


def full(tensor):
    if tensor is None:
        return None
    tensor = tensor.detach()
    return (mh.full_tensor(tensor) if mh.is_shard_tensor(tensor) else tensor).clone()


def loss_of(outputs):
    """A sum in which each number has a weight of its own."""
    total = 0.0
    for one in outputs:
        if one.is_complex():
            one = torch.view_as_real(one)
        if one.is_floating_point() and one.requires_grad:
            weight = torch.linspace(0.1, 7.0, one.numel(), dtype=torch.float64).sin().reshape(one.shape)
            total = total + (one * weight).mean()
    return total


def placements_of(value, dims, mesh):
    """Along each dim of the mesh uneven blocks of the tensor's dim, or copies where that is None."""
    return [
        mh.Replicate() if dim is None else mh.Shard(dim, uneven(value.shape[dim], ranks))
        for dim, ranks in zip(dims, mesh)
    ]


def run(world, model, nets, inputs, cut, mesh_shape):
    """What one rank gets: {group: {name: tensor}}, and its traffic. `cut` has dims of the input for each dim of the
    mesh; without a cut, plain tensors."""
    mh.manual_seed(SEED)
    net, given = nets[world.rank], {}
    mesh = mh.init_device_mesh(world, "cpu", list(mesh_shape)) if cut else None
    for key, value in inputs.items():
        if isinstance(value, torch.Tensor):
            value = value.clone()
            if cut and key in cut:
                value = mh.distribute_tensor(value, mesh, placements_of(value, cut[key], mesh_shape)).detach()
            if value.is_floating_point() and model.train:
                value.requires_grad_()
        given[key] = value
    world.comm_stats(reset=True)
    with (
        contextlib.nullcontext() if model.train else torch.no_grad(),
        KeepDouble() if model.double else contextlib.nullcontext(),
    ):
        outputs, loss = called(model, net, dict(given)), None
        if model.train:
            loss = loss_of(outputs)
            loss.backward()
    traffic = world.comm_stats()
    got = {"outputs": {str(k): full(one) for k, one in enumerate(outputs)}}
    if model.train:
        got["loss"] = {"loss": full(loss)}
        got["gradients of inputs"] = {
            str(key): full(one.grad)
            for key, one in given.items()
            if isinstance(one, torch.Tensor) and one.requires_grad
        }
        got["gradients of parameters"] = {name: full(one.grad) for name, one in net.named_parameters()}
        got["buffers"] = {name: full(one) for name, one in net.named_buffers()}
    return got, traffic


def run_all(model, net, inputs, cut, mesh_shape):
    """What each rank gets; bytes that a rank sends, of the rank that sends most; operators that were gathered."""
    ranks = math.prod(mesh_shape)
    nets, found = [copy.deepcopy(net) for _ in range(ranks)], [None] * ranks

    def on_rank(world):
        found[world.rank] = run(world, model, nets, inputs, cut, mesh_shape)

    mh.run_ranks(ranks, on_rank)
    gathered = {
        name for _, traffic in found for name, counts in traffic["by_operator"].items() if counts["gathered"] > 0
    }
    return [got for got, _ in found], max(traffic["bytes"] for _, traffic in found), sorted(gathered)


def distance(mine, plain, floor):
    """How far two tensors are apart, of the size of the plain one; None where one is missing or of another kind."""
    if mine is None and plain is None:
        return 0.0
    if mine is None or plain is None or mine.shape != plain.shape or mine.dtype != plain.dtype:
        return None
    if mine.numel() == 0 or torch.equal(mine, plain):
        return 0.0
    if not (plain.is_floating_point() or plain.is_complex()):
        return float((mine != plain).sum())
    apart = (mine - plain).abs().max().item()
    size = max(plain.abs().max().item(), floor, 1e-300)
    return apart / size if apart == apart else float("inf")


def distances(mine, plain):
    """{group: (distance, name)} of the tensor that is the farthest from plain; a distance of None is said at once."""
    worst = {}
    for group, tensors in plain.items():
        sizes = [
            one.abs().max().item()
            for one in tensors.values()
            if one is not None and one.numel() and one.is_floating_point()
        ]
        floor = SMALL * max(sizes, default=0.0)
        worst[group] = (0.0, "")
        if set(mine[group]) != set(tensors):
            worst[group] = (float("inf"), "other names")
            continue
        for name, one in tensors.items():
            apart = distance(mine[group][name], one, floor)
            if apart is None:
                worst[group] = (float("inf"), f"{name}: missing, or of another shape or dtype")
                break
            if apart > worst[group][0] or not worst[group][1]:
                worst[group] = (apart, name)
    return worst


def farthest(got, plain):
    """Of all ranks."""
    worst = {}
    for mine in got:
        for group, found in distances(mine, plain).items():
            if group not in worst or found[0] > worst[group][0]:
                worst[group] = found
    return worst


def check_plain(plain):
    if not any(bool(one.any()) for one in plain["outputs"].values()):
        raise ValueError("outputs: all zero on plain tensors, so there is nothing to compare")
    for group, tensors in plain.items():
        for name, one in tensors.items():
            if one is not None and one.is_floating_point() and not bool(torch.isfinite(one).all()):
                raise ValueError(f"{group} {name}: not finite on plain tensors; the row needs other arguments")


def condition(model, net, inputs, plain):
    """{group: distance} of a plain run whose inputs are rounded otherwise."""
    moved = {
        key: value * (1 + 2.3e-16) if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for key, value in inputs.items()
    }
    return {group: found[0] for group, found in farthest(run_all(model, net, moved, None, (1,))[0], plain).items()}


def judge(model, net, inputs, plain, worst):
    """The cause of a case whose run came to its end."""
    if all(found[0] <= TOLERANCE for found in worst.values()):
        return "right"
    moves = condition(model, net, inputs, plain)
    if all(
        found[0] <= max(TOLERANCE, min(ILL_CONDITIONED * moves[group], WORST_CONDITION))
        for group, found in worst.items()
    ):
        return "right"
    return "wrong numbers"


def cause_of(error):
    text = str(error)
    if "MOONHALO_TIMEOUT_S" in text or "another branch" in text:
        return "deadlock"
    return "refused: " + text.strip().split("\n")[0][:150]


def case_of(model, net, inputs, plain, cut, mesh_shape):
    case = {"cut": {str(key): dims for key, dims in cut.items()}, "mesh": mesh_shape}
    try:
        got, case["bytes"], case["gathered"] = run_all(model, net, inputs, cut, mesh_shape)
        worst = farthest(got, plain)
        case["cause"] = judge(model, net, inputs, plain, worst)
        case["worst"] = {group: {"distance": found[0], "name": found[1]} for group, found in worst.items()}
    except Exception as error:  # of any type: the model, its package or Moonhalo ended the run, and the row says how
        case["cause"] = cause_of(error)
        case["message"] = "".join(traceback.format_exception(error))[-4000:]
    return case


def cases_of(model, inputs, which):
    """Cuts, {input: a dim for each dim of the mesh}, each with the shape of its mesh: the first cut on 2 ranks, the
    last on 3, and two dims on 2 x 2. `which`: "all", each cut on each number of ranks; "plain", none."""
    first = next(iter(inputs))
    cuts = [cut if isinstance(cut, dict) else {first: cut} for cut in model.cuts]
    if which == "plain":
        return []
    if which == "all":
        lines = [(cut, ranks) for cut in cuts for ranks in model.ranks]
    else:
        lines = [(cuts[0], 2), (cuts[-1], 3)]
    grid = grid_of(cuts, {key: value.shape for key, value in inputs.items() if isinstance(value, torch.Tensor)})
    return [({key: (dim,) for key, dim in cut.items()}, (ranks,)) for cut, ranks in lines] + [(grid, (2, 2))]


def find(family, name):
    for model in importlib.import_module("tables." + family).MODELS:
        if model.name == name:
            return model
    raise SystemExit(f"one_model.py: no model {name} in tables/{family}.py")


def set_up():
    """The settings of a process that runs models; before their packages, which may make tensors when imported."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)


def main(family, name, path, which=""):
    set_up()
    torch.manual_seed(SEED)
    model, result = find(family, name), {"cases": []}

    def write():
        with open(path, "w", encoding="utf-8") as file:
            json.dump(result, file)

    try:
        net = with_numbers(in_double(made(model.build))).train(model.train)
        inputs = as_named(made(model.inputs))
        plain = run_all(model, net, inputs, None, (1,))[0][0]
        check_plain(plain)
    except Exception as error:  # a row that is wrong, or a package that does not fit: no judgement of Moonhalo
        result["plain"] = "".join(traceback.format_exception(error))[-4000:]
        write()
        return
    result["parameters"] = sum(one.numel() for one in net.parameters())
    for cut, mesh_shape in cases_of(model, inputs, which):
        result["running"] = {"cut": str(cut), "mesh": mesh_shape}
        write()
        result["cases"].append(case_of(model, net, inputs, plain, cut, mesh_shape))
        if result["cases"][-1]["cause"] == "deadlock":
            break  # decided, and each takes the time limit
    result.pop("running", None)
    write()


if __name__ == "__main__":
    main(*sys.argv[1:])
