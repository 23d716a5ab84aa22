#!/usr/bin/env python3
"""Writes optimizers.lua beside it: what PyTorch's optimizers and schedules give on a small problem.
usage: python optimizers.py  (PyTorch 2.11, for Muon)"""

import math
from pathlib import Path

import torch

torch.set_default_dtype(torch.float64)
STEPS = 6


def problem():
    start = torch.tensor([[0.9, -1.1, 0.3], [0.2, 0.7, -0.5], [-1.3, 0.4, 0.8], [0.6, -0.2, 1.5]])
    return start.clone().requires_grad_(True), torch.tensor([0.5, -0.25, 0.75], requires_grad=True)


def loss_of(w, b):
    c = torch.tensor([1.0, 2.0, 3.0])
    return ((w * c - b) ** 2).sum() + (w**4).sum() * 0.1


class Lion(torch.optim.Optimizer):
    """Chen et al. 2023, algorithm 2."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                direction = torch.sign(beta1 * m + (1 - beta1) * p.grad)
                p.sub_(group["lr"] * (direction + group["weight_decay"] * p))
                self.state[p]["m"] = beta2 * m + (1 - beta2) * p.grad


OPTIMIZERS = [
    ("NAdam", torch.optim.NAdam, {"lr": 0.1}),
    ("NAdam", torch.optim.NAdam, {"lr": 0.1, "weight_decay": 0.1, "decoupled_weight_decay": True, "betas": [0.8, 0.9]}),
    ("RAdam", torch.optim.RAdam, {"lr": 0.1}),
    ("RAdam", torch.optim.RAdam, {"lr": 0.1, "betas": [0.8, 0.9], "weight_decay": 0.1}),
    ("Adamax", torch.optim.Adamax, {"lr": 0.1, "weight_decay": 0.05}),
    ("Adadelta", torch.optim.Adadelta, {"lr": 2.0, "rho": 0.8, "weight_decay": 0.1}),
    ("Rprop", torch.optim.Rprop, {"lr": 0.05, "etas": [0.4, 1.3], "step_sizes": [1e-3, 0.2]}),
    ("ASGD", torch.optim.ASGD, {"lr": 0.02, "lambd": 0.01, "t0": 2.0, "weight_decay": 0.1, "alpha": 0.5}),
    ("Adafactor", torch.optim.Adafactor, {"lr": 0.1, "weight_decay": 0.1}),
    ("Adafactor", torch.optim.Adafactor, {"lr": 0.1, "beta2_decay": -0.5, "d": 2.0, "maximize": True}),
    ("Lion", Lion, {"lr": 0.05, "weight_decay": 0.1, "betas": [0.8, 0.9]}),
    ("Muon", torch.optim.Muon, {"lr": 0.1}),
    ("Muon", torch.optim.Muon, {"lr": 0.1, "nesterov": False, "weight_decay": 0.0, "adjust_lr_fn": "match_rms_adamw"}),
]


def trained(kind, options):
    w, b = problem()
    given = [w] if kind is torch.optim.Muon else [w, b]
    options = {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
    optimizer = kind(given, **options)
    for _ in range(STEPS):
        w.grad = b.grad = None
        loss_of(w, b).backward()
        optimizer.step()
    return w.flatten().tolist() + b.tolist()


def sgd():
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5, momentum=0.9)


L = torch.optim.lr_scheduler
SCHEDULES = [
    ("CyclicLR(o, 0.1, 0.5, {step_size_up = 3})", lambda o: L.CyclicLR(o, 0.1, 0.5, step_size_up=3)),
    (
        'CyclicLR(o, 0.1, 0.5, {step_size_up = 2, step_size_down = 4, mode = "triangular2"})',
        lambda o: L.CyclicLR(o, 0.1, 0.5, step_size_up=2, step_size_down=4, mode="triangular2"),
    ),
    (
        'CyclicLR(o, 0.1, 0.5, {step_size_up = 4, mode = "exp_range", gamma = 0.9})',
        lambda o: L.CyclicLR(o, 0.1, 0.5, step_size_up=4, mode="exp_range", gamma=0.9),
    ),
    (
        "MultiplicativeLR(o, function(step) return 1 - 0.05 * step end)",
        lambda o: L.MultiplicativeLR(o, lambda step: 1 - 0.05 * step),
    ),
    (
        "ChainedScheduler(o, {optim.ConstantLR(o, 0.1, 3), optim.ExponentialLR(o, 0.9)})",
        lambda o: L.ChainedScheduler([L.ConstantLR(o, 0.1, 3), L.ExponentialLR(o, 0.9)], optimizer=o),
    ),
    (
        "ChainedScheduler(o, {optim.LinearLR(o), optim.StepLR(o, 4, {gamma = 0.5}), optim.CosineAnnealingLR(o, 20)})",
        lambda o: L.ChainedScheduler(
            [L.LinearLR(o), L.StepLR(o, 4, gamma=0.5), L.CosineAnnealingLR(o, 20)], optimizer=o
        ),
    ),
]


def rates(make):
    optimizer = sgd()
    schedule = make(optimizer)
    found = []
    for _ in range(14):
        found.append((optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["momentum"]))
        optimizer.step()
        schedule.step()
    return found


def lua(value):
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, (list, tuple)):
        return "{" + ", ".join(lua(v) for v in value) + "}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} = {lua(v)}" for k, v in value.items()) + "}"
    return repr(value)


def wrapped(numbers, indent):
    lines, line = [], indent + "{"
    for i, number in enumerate(numbers):
        word = number + ("," if i < len(numbers) - 1 else "}")
        if len(line) + len(word) > 116:
            lines.append(line)
            line = indent + " " + word
        else:
            line += (" " if not line.endswith("{") else "") + word
    return "\n".join(lines + [line])


def main():
    text = [
        "-- SPDX-License-Identifier: Apache-2.0",
        "-- Written by optimizers.py with PyTorch " + torch.__version__.split("+")[0] + ".",
        "return {",
        "  optimizers = {",
    ]
    for name, kind, options in OPTIMIZERS:
        text += [
            f'    {{"{name}", {lua(options)},',
            wrapped([repr(v) for v in trained(kind, options)], "      ") + "},",
        ]
    text += ["  },", "  schedules = {"]
    for call, make in SCHEDULES:
        found = rates(make)
        text += [
            f"    {{function(o, optim) return optim.{call} end,",
            wrapped([repr(lr) for lr, _ in found], "      ") + ",",
            wrapped([repr(m) for _, m in found], "      ") + "},",
        ]
    text += ["  },", "}"]
    Path(__file__).with_suffix(".lua").write_text("\n".join(text) + "\n", encoding="utf-8")


main()
