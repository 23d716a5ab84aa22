# SPDX-License-Identifier: Apache-2.0
"""A U-Net of PyTorch, exported for the solvers of this folder; and what PyTorch itself computes with it.

python model.py export unet.pt2
python model.py check u_fortran.pt u_c.pt     compares the fields that the solvers wrote with PyTorch's"""

import sys

import torch
import torch.nn.functional as F
from torch import nn

ROWS, COLUMNS, STEPS = 44, 36, 3


class Block(nn.Sequential):
    def __init__(self, inputs, outputs):
        super().__init__(
            nn.Conv2d(inputs, outputs, 3, padding=1),
            nn.GroupNorm(2, outputs),
            nn.GELU(),
            nn.Conv2d(outputs, outputs, 3, padding=1),
            nn.GELU(),
        )


class UNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.enter = Block(1, width)
        self.down = Block(width, 2 * width)
        self.bottom = Block(2 * width, 4 * width)
        self.up = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.join = Block(4 * width, 2 * width)
        self.top = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.leave = nn.Sequential(Block(2 * width, width), nn.Conv2d(width, 1, 1))

    def forward(self, x):
        fine = self.enter(x)
        middle = self.down(F.max_pool2d(fine, 2))
        coarse = self.bottom(F.max_pool2d(middle, 2))
        middle = self.join(torch.cat([middle, self.up(coarse)], 1))
        return self.leave(torch.cat([fine, self.top(middle)], 1))


def model():
    torch.manual_seed(1)  # in place of training
    return UNet().double().eval()


def export(path):
    x = torch.zeros(1, 1, ROWS, COLUMNS, dtype=torch.float64)
    torch.export.save(torch.export.export(model(), (x,)), path)


def expected():
    """What the solvers compute, on one tensor."""
    i, j = torch.arange(1.0, ROWS + 1, dtype=torch.float64), torch.arange(1.0, COLUMNS + 1, dtype=torch.float64)
    u, net = torch.outer(torch.sin(0.3 * i), torch.cos(0.2 * j)), model()
    with torch.no_grad():
        for _ in range(STEPS):
            u = u + 0.1 * net(u[None, None])[0, 0]
    return u


def check(paths):
    truth = expected()
    for path in paths:
        u = torch.load(path)["u"]
        difference = ((u - truth).abs().max() / truth.abs().max()).item()
        print(f"{path}: {list(u.shape)}, largest difference from PyTorch {difference:.1e}")
        if difference > 1e-10:
            sys.exit("the solver and PyTorch differ")


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "export":
        export(sys.argv[2])
    elif len(sys.argv) > 2 and sys.argv[1] == "check":
        check(sys.argv[2:])
    else:
        sys.exit(__doc__)
