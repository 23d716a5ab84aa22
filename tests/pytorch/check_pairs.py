# SPDX-License-Identifier: Apache-2.0
"""Pairs of programs in docs/from_pytorch.md: Python runs its half here, pairs.lua the other half on one rank and, with
inputs in blocks, on three. Both halves have the same inputs and initial weights, and must leave the same `out` (Y10).

check_pairs.py PROGRAM SCRIPT [PATTERN]: with PATTERN only pairs whose Lua contains it."""

import json
import math
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "docs/tools"))
warnings.filterwarnings("ignore", message="Failed to initialize NumPy")

import pages
import torch
import torch.distributed

PAGE = SOURCE / "docs/from_pytorch.md"
LEAST_PAIRS = 70
DRAWN = ("uniform_", "normal_", "xavier_uniform_", "xavier_normal_", "kaiming_uniform_", "kaiming_normal_")


def sines(shape, start):
    numbers = [math.sin(start + 0.7 * i) for i in range(math.prod(shape))]
    return torch.tensor(numbers, dtype=torch.float64).reshape(shape)


def inputs():
    half = sines((4, 4), 5)
    return {
        "x": sines((7, 4), 1),
        "y": sines((7, 4), 2),
        "v": sines((7,), 3),
        "labels": torch.tensor([3, 0, 1, 1, 2, 3, 0]),
        "image": sines((2, 3, 9, 8), 4),
        "A": half @ half.T + torch.eye(4, dtype=torch.float64),
        "w": sines((4, 3), 6),
    }


def use_the_same_weights():
    """Initial values that would be drawn are sines, as in pairs.lua."""

    def fill(tensor, *_, **__):
        with torch.no_grad():
            return tensor.copy_(0.4 * sines(tensor.shape, 0.3))

    for module in [one for name, one in list(sys.modules.items()) if name.startswith("torch.nn")]:
        for name in DRAWN:
            if hasattr(module, name) and getattr(module, name).__module__ == "torch.nn.init":
                setattr(module, name, fill)


def encoded(value):
    """A value as JSON that keeps types, infinities and NaN."""
    if isinstance(value, torch.Tensor):
        value = value.detach()
        kind = str(value.dtype).removeprefix("torch.")
        flat = torch.view_as_real(value) if value.is_complex() else value
        numbers = [str(one) if isinstance(one, float) else one for one in flat.flatten().tolist()]
        return {"kind": "tensor", "dtype": kind, "shape": list(value.shape), "values": numbers}
    if isinstance(value, (list, tuple)):
        return {"kind": "list", "values": [encoded(one) for one in value]}
    if isinstance(value, float):
        return {"kind": "number", "value": str(value)}
    kinds = {bool: "boolean", int: "number", str: "string"}
    if type(value) not in kinds:
        raise TypeError(f"out has a {type(value).__name__}")
    return {"kind": kinds[type(value)], "value": value}


def run_python(start, lines):
    scope = {"torch": torch, "nn": torch.nn, "F": torch.nn.functional, "optim": torch.optim, **inputs()}
    exec(compile("\n" * (start - 1) + "\n".join(lines), str(PAGE), "exec"), scope)
    if "out" not in scope:
        raise NameError(f"{PAGE}:{start}: the block leaves no out")
    return encoded(scope["out"])


def main():
    program, script, *patterns = sys.argv[1:]
    program, script = Path(program).resolve(), Path(script).resolve()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    use_the_same_weights()
    pairs = [pair for pair in pages.pairs(PAGE) if not patterns or any(patterns[0] in line for line in pair[1][1])]
    assert patterns or len(pairs) >= LEAST_PAIRS, f"{PAGE} has {len(pairs)} pairs, fewer than {LEAST_PAIRS}"
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        given = {name: encoded(value) for name, value in inputs().items()}
        cases = [{"line": lua[0], "code": "\n".join(lua[1]), "out": run_python(*python)} for python, lua in pairs]
        Path("pairs.json").write_text(json.dumps({"inputs": given, "drawn": DRAWN, "pairs": cases}), encoding="utf-8")
        status = 0
        for ranks in (1, 3):
            ended = subprocess.run([program, "run", script, "--ranks", str(ranks)], check=False)
            status |= ended.returncode != 0
    torch.distributed.destroy_process_group()
    sys.exit(status)


if __name__ == "__main__":
    main()
