# SPDX-License-Identifier: Apache-2.0
"""A ConvNeXt of torch.nn for monthly fields on a globe, exported for train.lua; and the check of what comes back.

python model.py export net.pt2
python model.py check output ...   loads output/tuned.pt into PyTorch, and compares it with output/sample.pt"""

import sys

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    """A block of ConvNeXt (Liu et al., 2022). Longitudes go round."""

    def __init__(self, channels):
        super().__init__()
        self.spatial = nn.Conv2d(channels, channels, 7, padding=(3, 0), groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.expand = nn.Linear(channels, 4 * channels)
        self.contract = nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(torch.full((channels,), 0.1))

    def forward(self, x):
        h = self.spatial(F.pad(x, (3, 3, 0, 0), "circular")).permute(0, 2, 3, 1)
        h = self.contract(F.gelu(self.expand(self.norm(h)))) * self.scale
        return x + h.permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    """[months, 3, latitudes, longitudes] -> [months, 1, latitudes, longitudes]: the month after three."""

    def __init__(self, channels=16, depth=2):
        super().__init__()
        self.memory = nn.Parameter(torch.tensor(0.5))
        self.enter = nn.Conv2d(3, channels, 1)
        self.blocks = nn.Sequential(*[Block(channels) for _ in range(depth)])
        self.leave = nn.Conv2d(channels, 1, 1)

    def forward(self, x):
        return self.memory * x[:, -1:] + 0.1 * self.leave(self.blocks(self.enter(x)))


def build(dtype=torch.float32):
    """The model with the weights that are to be tuned: here from a seed, else from a file of weights."""
    torch.manual_seed(11)
    return ConvNeXt().to(dtype)


def export(path, dtype):
    x = torch.zeros(8, 3, 89, 180, dtype=dtype)
    months = {"x": {0: torch.export.Dim("months", min=1, max=1000)}}
    torch.export.save(torch.export.export(build(dtype), (x,), dynamic_shapes=months), path)


def check(folder):
    sample, state = torch.load(f"{folder}/sample.pt"), torch.load(f"{folder}/tuned.pt")
    net = build(sample["x"].dtype)
    before = {name: one.clone() for name, one in net.state_dict().items()}
    net.load_state_dict(state)
    tuned = max((state[name] - one).abs().max().item() for name, one in before.items())
    with torch.no_grad():
        y = net(sample["x"])
    difference = ((y - sample["y"]).abs().max() / y.abs().max()).item()
    print(f"{folder}: weights have changed by up to {tuned:.3f}, outputs of PyTorch differ by {difference:.1e}")
    if tuned < 1e-3 or difference > (1e-10 if y.dtype == torch.float64 else 1e-5):
        sys.exit("the tuned model is not what PyTorch loads")


if __name__ == "__main__":
    words = sys.argv[1:]
    if len(words) in (2, 3) and words[0] == "export":
        export(words[1], getattr(torch, words[2]) if len(words) == 3 else torch.float32)
    elif len(words) > 1 and words[0] == "check":
        for folder in words[1:]:
            check(folder)
    else:
        sys.exit(__doc__)
