#!/usr/bin/env python3
"""Writes grad_scaler.lua beside it: scales and parameters of 200 steps of PyTorch's GradScaler, in some of which a
gradient is not finite.  usage: python grad_scaler.py"""

import math
from pathlib import Path

import torch

STEPS = 200


def planted(step):
    """What stands in the place of one number of the input, if anything."""
    if step % 17 == 5:
        return math.inf
    if step % 41 == 7:
        return math.nan
    return None


def main():
    w = torch.arange(6, dtype=torch.float64).requires_grad_(True)
    optimizer = torch.optim.SGD([w], lr=0.01, momentum=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_factor=2.0, backoff_factor=0.25, growth_interval=6)
    powers = []
    for step in range(STEPS):
        x = torch.arange(1, 7, dtype=torch.float64) * (1 + step % 3)
        if planted(step) is not None:
            x[step % 6] = planted(step)
        optimizer.zero_grad()
        scaler.scale((w * x).square().sum() * 0.01).backward()
        scaler.step(optimizer)
        scaler.update()
        powers.append(int(math.log2(scaler.get_scale())))
    lines, line = [], "   "
    for power in powers:
        if len(line) > 110:
            lines.append(line)
            line = "   "
        line += f" {power},"
    text = [
        "-- SPDX-License-Identifier: Apache-2.0",
        "-- Written by grad_scaler.py with PyTorch " + torch.__version__.split("+")[0] + ".",
        "return {",
        "  -- powers of 2",
        "  scales = {",
        *lines,
        line,
        "  },",
        "  parameters = {",
        *(f"    {v!r}," for v in w.tolist()),
        "  },",
        "}",
    ]
    Path(__file__).with_suffix(".lua").write_text("\n".join(text) + "\n", encoding="utf-8")


main()
