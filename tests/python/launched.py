# SPDX-License-Identifier: Apache-2.0
"""The world of the processes that a launcher has started (X15): by MPI where its MPI joins them; else by TCP, and MPI
is refused, since each process would be alone in it.  usage: torchrun --nproc-per-node 2 launched.py
FOLDER_OF_THE_MODULE tcp|mpi"""

import pickle
import sys

sys.path.insert(0, sys.argv[1])
import moonhalo as mh
import torch

wanted = sys.argv[2]
try:
    found = mh.mpi_world()
    if wanted != "mpi" or found.size != 2:
        sys.exit(f"mpi_world: no error, rank {found.rank} of {found.size}")
except (ValueError, mh.CommError) as error:
    print(f"mpi_world: {error}")
    if wanted == "mpi" or "started 2 processes" not in str(error) and "without MPI" not in str(error):
        sys.exit("mpi_world: another error")
world = mh.world()
mesh = mh.init_device_mesh(world, "cpu", [world.size])
full = torch.arange(10, dtype=torch.float64).reshape(5, 2)
x = mh.distribute_tensor(full, mesh, [mh.Shard(0)])
w = torch.ones(2, dtype=torch.float64, requires_grad=True)
(x * w).square().sum().backward()
good = [
    world.backend == wanted,
    world.size == 2,
    torch.equal(mh.full_tensor(x), full),
    torch.allclose(w.grad, 2 * full.square().sum(0)),
    torch.equal(mh.full_tensor(x[:, 0]), full[:, 0]),
]
# The same by methods, as programs for DTensor have it (Y05): samples of two ranks, one step, a pickle.
net, plain = torch.nn.Linear(2, 3).double(), torch.nn.Linear(2, 3).double()
with torch.no_grad():
    for one in (*net.parameters(), *plain.parameters()):
        one.copy_(torch.arange(one.numel(), dtype=torch.float64).cos().reshape(one.shape))
mh.fully_shard(net, mesh=mesh, min_numel=1)
steps = [torch.optim.Adam(one.parameters(), lr=0.1) for one in (net, plain)]
net(x.to_local().clone()).square().mean().backward()
plain(full).square().mean().backward()
norms = [mh.clip_grad_norm_(net.parameters(), 0.5), torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)]
for one in steps:
    one.step()
state = pickle.loads(pickle.dumps(net.state_dict()))
good += [
    mesh.get_group().size == 2,
    torch.allclose(*norms),
    all(torch.allclose(state[name], one) for name, one in plain.state_dict().items()),
]
print(f"rank {world.rank}: {good}")
world.barrier()
sys.exit(not all(good))
