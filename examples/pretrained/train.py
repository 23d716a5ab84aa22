# SPDX-License-Identifier: Apache-2.0
"""train.lua in Python: the model stays a torch.nn.Module, and is trained on the same blocks.

python train.py [--ranks 3] [--epochs 6] [--stop 0] [--dtype float32] [--output output]     ranks as threads
mpirun -n 3 python train.py                                                      or as processes"""

import argparse
import copy
from pathlib import Path

import moonhalo as mh
import torch

import model

HERE = Path(__file__).resolve().parent
TRAINED = 96  # months of 2010 to 2017


def load(mesh, dtype):
    """Anomalies of 128 months, cut into blocks of latitudes, 0 on land; and 1 where there is sea."""
    file = mh.open(str(HERE.parent / "sst/data/noaa_ersst_v5_sst_monthly.nc"))
    sst = mh.scatter_tensor(file["sst"], mesh, [mh.Shard(1)], dtype=dtype, decode=True)
    climatology = sst[:TRAINED].unflatten(0, (TRAINED // 12, 12)).mean(0)
    months = torch.arange(sst.shape[0]) % 12
    return (sst - climatology.index_select(0, months)).nan_to_num(), sst[0].isfinite().to(dtype)


def train(world, options, made):
    dtype = getattr(torch, options.dtype)
    mesh = mh.init_device_mesh(world, "cpu", [world.size], ["latitude"])
    anomalies, sea = load(mesh, dtype)
    net = copy.deepcopy(made)  # ranks that are threads have a copy each
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)

    def samples(first, last):
        before = [anomalies[first - k : last + 1 - k] for k in (3, 2, 1)]
        return torch.stack(before, 1), anomalies[first : last + 1].unsqueeze(1)

    def mean_square(error):
        return (error * sea).square().sum() / (sea.sum() * error.shape[0])

    def say(text):
        if world.rank == 0:
            print(text, flush=True)

    for epoch in range(1, options.epochs + 1):
        losses = []
        for first in range(3, TRAINED, 8):
            x, y = samples(first, min(first + 8, TRAINED) - 1)
            loss = mean_square(net(x) - y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if len(losses) == options.stop:
                break
        say(f"epoch {epoch}  loss {sum(losses) / len(losses):.6f}")

    x, y = samples(TRAINED, anomalies.shape[0] - 1)
    with torch.no_grad():
        guess = net(x)
    rmse = [mean_square(error).sqrt().item() for error in (guess - y, y, x[:, -1:] - y)]
    say("RMSE in kelvin, 2018 to 2020: network {:.3f}, climatology {:.3f}, persistence {:.3f}".format(*rmse))
    sample = {"x": x[:2].full_tensor(), "y": guess[:2].full_tensor()}
    if world.rank == 0:
        Path(options.output).mkdir(parents=True, exist_ok=True)
        torch.save(net.state_dict(), f"{options.output}/tuned.pt")
        torch.save(sample, f"{options.output}/sample.pt")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--stop", type=int, default=0, help="batches of an epoch; 0: all")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--output", default=str(HERE / "output_python"))
    options = parser.parse_args()
    made = model.build(getattr(torch, options.dtype))
    world = mh.world()
    if world.size > 1:
        train(world, options, made)
    else:
        mh.run_ranks(options.ranks, train, options, made)


if __name__ == "__main__":
    main()
