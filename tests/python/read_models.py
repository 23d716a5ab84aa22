#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads the TorchScript files that script_features.lua writes (Y04) and compares outputs with those that Lua computed.
usage: read_models.py FOLDER"""

import sys
import warnings
from pathlib import Path

import torch

warnings.simplefilter("ignore")
folder = Path(sys.argv[1])


def check(what, good):
    if not good:
        sys.exit(f"FAILED: {what}")


net = torch.jit.load(str(folder / "lua.pt"))
kept = dict(torch.jit.load(str(folder / "lua_results.pt")).named_buffers())
check("names", {"conv.weight", "blocks.0.weight", "blocks.2.bias"} <= set(dict(net.named_parameters())))
check("gradients are required", net.conv.weight.requires_grad and not net.still.requires_grad)
for x, y in (("x", "y"), ("other_x", "other_y")):
    found = net(kept[x])
    check(f"outputs for {x}: {(found - kept[y]).abs().max()}", torch.allclose(found, kept[y], rtol=1e-12, atol=1e-12))
net(kept["x"]).sum().backward()
check("gradients", net.conv.weight.grad.abs().sum() > 0)

# A model that was loaded, divided, trained for a step, and saved from its blocks.
tuned = torch.jit.load(str(folder / "tuned.pt"))
found = tuned(kept["x"])
check(
    f"outputs of the tuned model: {(found - kept['tuned_y']).abs().max()}",
    torch.allclose(found, kept["tuned_y"], rtol=1e-10, atol=1e-12),
)
print("all well")
