# SPDX-License-Identifier: Apache-2.0
"""A training step of an installed wheel on two ranks, beside plain PyTorch; a compressed HDF5 file, written and
scattered, and a chunk of Zarr by each codec.  usage: wheel_step.py BACKEND FOLDER"""

import base64
import json
import sys
from pathlib import Path

import moonhalo as mh
import torch

backend, folder = sys.argv[1], Path(sys.argv[2])
world = mh.world()
assert (world.backend, world.size) == (backend, 2), f"{world.size} ranks over {world.backend}"
mesh = mh.init_device_mesh(world, "cpu", [2])
torch.manual_seed(0)
whole = torch.randn(1, 3, 13, 8, dtype=torch.float64)


def trained(x):
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.GELU(), torch.nn.Conv2d(4, 3, 3, padding=1))
    net = net.double()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    loss = torch.nn.functional.mse_loss(net(x), x)
    loss.backward()
    optimizer.step()
    return [loss.detach(), *(one.detach() for one in net.parameters())]


def full(x):
    return mh.full_tensor(x) if isinstance(x, mh.ShardTensor) else x


def same(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


for ours, plain in zip(trained(mh.scatter_tensor(whole, mesh, [mh.Shard(2)])), trained(whole)):
    same(full(ours), plain)
print(f"rank {world.rank}: trained\n", end="", flush=True)

path = str(folder / f"{backend}.h5")
out = mh.open(path, "w")
out.write("x", mh.scatter_tensor(whole, mesh, [mh.Shard(2)]), chunks=[1, 3, 4, 8], compression=4)
out.close()
same(full(mh.scatter_tensor(mh.open(path)["x"], mesh, [mh.Shard(2)])), whole)

# The numbers 0 to 63 in float64, as numcodecs writes them; Blosc with LZ4.
CHUNKS = {
    "zlib": "eNpNx7tyQQEARdFTKhUKhcIYYzLGGK9EvC8SEq/7Sz7ZJyiswmnW2cn7HhuneFFhlTXW2WCTLbbZ4Qe77LHPAYccccwJP/nFKb8545wL"
    "LrnimhsWL+/MVjM7zew186OZX80cNHPUzJ9m/jVz0sxZMxfNXDVz00ypy+IJIc8msA==",
    "zstd": "KLUv/WAAAZ0DADQFAADwP0AIEBQYHCAiJCYoKiwuMDEyMzQ1Njc4OTo7PD0+P0CAAEGAAEKAAEOAAESAAEWAAEaAAEeAAEiAAEmAAEqA"
    "AEuAAEyAAE2AAE6AAE+AT0A/qBDID/DVEEy+GeMOIt10gB13EH3q/78tqwwPiaE=",
    "blosc": "AgExCAACAAAAAgAAcAAAABQAAABYAAAAHwABAP9OH4ACAAz/M/AACBAUGBwgIiQmKCosLjAxMjM0NTY3ODk6Ozw9Pj9AQEFBQkJDQ0RE"
    "RUVGRkdHSEhJSUpKS0tMTE1NTk5PTwA/QAEAJVBAQEBAQA==",
}
numbers = torch.arange(64, dtype=torch.float64)
for codec, chunk in CHUNKS.items():
    array = folder / f"{backend}_{codec}.zarr" / "x"
    if world.rank == 0:
        array.mkdir(parents=True)
        (array.parent / ".zgroup").write_text('{"zarr_format": 2}')
        about = {"zarr_format": 2, "shape": [64], "chunks": [64], "dtype": "<f8", "order": "C"}
        about |= {"fill_value": 0, "filters": None, "compressor": {"id": codec}}
        (array / ".zarray").write_text(json.dumps(about))
        (array / "0").write_bytes(base64.b64decode(chunk))
    world.barrier()
    same(full(mh.scatter_tensor(mh.open(str(array.parent))["x"], mesh, [mh.Shard(0)])), numbers)
print(f"rank {world.rank}: all right over {backend}\n", end="", flush=True)
world.barrier()
