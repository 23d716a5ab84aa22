#!/usr/bin/env python3
"""Writes torch_names.lua beside it: the public names of torch, its tensors, torch.nn and the modules around them.
usage: python torch_names.py"""

import types
import warnings
from pathlib import Path

import torch
import torch.distributions


def classes(module, base):
    return sorted(
        name
        for name in dir(module)
        if not name.startswith("_")
        and isinstance(getattr(module, name), type)
        and issubclass(getattr(module, name), base)
    )


def functions(module):
    """What can be called, without classes: of Python's own tools, such as Optional, many are in the modules, too."""
    return sorted(
        name
        for name in dir(module)
        if not name.startswith("_")
        and callable(getattr(module, name))
        and not isinstance(getattr(module, name), (type, types.ModuleType))
        and getattr(getattr(module, name), "__module__", "") != "typing"
    )


def autograd():
    """Lists of modules have names that are not there, and modules."""
    return sorted(
        name
        for name in {*torch.autograd.__all__, "graph", "functional", "set_detect_anomaly"}
        if not isinstance(getattr(torch.autograd, name), types.ModuleType)
    )


def main():
    warnings.simplefilter("ignore")
    text = [
        "-- SPDX-License-Identifier: Apache-2.0",
        "-- Written by torch_names.py with PyTorch " + torch.__version__.split("+")[0] + ".",
        "return {",
    ]
    kinds = {
        "nn": classes(torch.nn, (torch.nn.Module, torch.nn.Parameter)),
        "optim": classes(torch.optim, torch.optim.Optimizer),
        "lr_scheduler": classes(torch.optim.lr_scheduler, torch.optim.lr_scheduler.LRScheduler),
        "functional": functions(torch.nn.functional),
        "init": [name for name in functions(torch.nn.init) if name.endswith("_") or name == "calculate_gain"],
        "nn.utils": functions(torch.nn.utils),
        "func": sorted(torch.func.__all__),
        "autograd": autograd(),
        "torch": functions(torch),
        "Tensor": sorted(name for name in dir(torch.Tensor) if not name.startswith("_")),
        "distributions": sorted(torch.distributions.__all__),
    }
    for kind, names in kinds.items():
        text.append(f'  ["{kind}"] = {{' if "." in kind else f"  {kind} = {{")
        line = "   "
        for name in names:
            if len(line) + len(name) > 112:
                text.append(line)
                line = "   "
            line += f' "{name}",'
        text += [line, "  },"]
    Path(__file__).with_suffix(".lua").write_text("\n".join(text + ["}"]) + "\n", encoding="utf-8")


main()
