#!/usr/bin/env python3
"""Writes torch_names.lua beside it: the public names of torch.nn, torch.optim and its schedules.
usage: python torch_names.py"""

from pathlib import Path

import torch


def classes(module, base):
    return sorted(
        name
        for name in dir(module)
        if not name.startswith("_")
        and isinstance(getattr(module, name), type)
        and issubclass(getattr(module, name), base)
    )


def main():
    text = [
        "-- SPDX-License-Identifier: Apache-2.0",
        "-- Written by torch_names.py with PyTorch " + torch.__version__.split("+")[0] + ".",
        "return {",
    ]
    kinds = {
        "nn": classes(torch.nn, (torch.nn.Module, torch.nn.Parameter)),
        "optim": classes(torch.optim, torch.optim.Optimizer),
        "lr_scheduler": classes(torch.optim.lr_scheduler, torch.optim.lr_scheduler.LRScheduler),
    }
    for kind, names in kinds.items():
        text.append(f"  {kind} = {{")
        line = "   "
        for name in names:
            if len(line) + len(name) > 112:
                text.append(line)
                line = "   "
            line += f' "{name}",'
        text += [line, "  },"]
    Path(__file__).with_suffix(".lua").write_text("\n".join(text + ["}"]) + "\n", encoding="utf-8")


main()
