# SPDX-License-Identifier: Apache-2.0
"""Optimizers of PyTorch after five steps, saved and continued by SCRIPT on one and three ranks (Y03).

check_optimizers.py PROGRAM SCRIPT"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import torch

program, script = sys.argv[1:3]
torch.manual_seed(1)
x, y = torch.randn(11, 5, dtype=torch.float64), torch.randn(11, 2, dtype=torch.float64)
KINDS = {
    "SGD": {"lr": 0.1, "momentum": 0.9},
    "Adam": {"lr": 1e-2, "amsgrad": True},
    "AdamW": {"lr": 1e-2, "weight_decay": 0.1},
    "RMSprop": {"lr": 1e-2, "centered": True, "momentum": 0.5},
    "Adagrad": {"lr": 1e-1, "lr_decay": 0.1},
}


def train(net, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()


cases = []
with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    for name, options in KINDS.items():
        for turned in (False, True):
            net = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 2)).double()
            names = [one for one, _ in net.named_parameters()]
            if turned:
                names.reverse()
            parameters = dict(net.named_parameters())
            optimizer = getattr(torch.optim, name)([parameters[one] for one in names], **options)
            train(net, optimizer, 5)
            optimizer.param_groups[0]["lr"] /= 2
            path = f"{name}{turned}.ckpt"
            torch.save({"state_dict": net.state_dict(), "optimizer_states": [optimizer.state_dict()]}, path)
            train(net, optimizer, 3)
            cases.append(
                {
                    "file": path,
                    "name": name,
                    "names": names if turned else None,
                    "after": {key: value.tolist() for key, value in net.state_dict().items()},
                }
            )
    pathlib.Path("cases.json").write_text(json.dumps({"cases": cases, "x": x.tolist(), "y": y.tolist()}))
    torch.save(torch.optim.SGD([torch.ones(1)], maximize=True).state_dict(), "maximize.pt")
    for ranks in ("1", "3"):
        ended = subprocess.run([program, "run", script, "--ranks", ranks, "--", folder], check=False)
        assert ended.returncode == 0, f"{script} on {ranks} ranks ended with {ended.returncode}"
