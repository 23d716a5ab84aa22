# SPDX-License-Identifier: Apache-2.0
"""Makes small files in the layouts of The Well and of PDEBench, for train.lua: a dye that a changing flow stirs in a
periodic box. They are made here; no number in them is from those collections.

    .venv-tests/bin/python examples/well/make.py FOLDER       (that environment is made by ./dev test)
"""

import os
import sys

import h5py
import numpy as np

X, Y, STEPS, RUNS, FILES = 48, 40, 17, 4, 3
rng = np.random.default_rng(11)


def smooth(runs, reach):
    """Random periodic fields [runs, X, Y] of waves up to `reach` per side, of variance 1."""
    k = np.sqrt(np.add.outer((np.fft.fftfreq(X) * X) ** 2, (np.fft.fftfreq(Y) * Y) ** 2))
    waves = np.fft.fft2(rng.standard_normal((runs, X, Y))) * np.exp(-((k / reach) ** 2)) * (k > 0)
    field = np.fft.ifft2(waves).real
    return field / field.std(axis=(1, 2), keepdims=True)


def slope(field, axis):
    return (np.roll(field, -1, axis) - np.roll(field, 1, axis)) / 2


def simulate(runs):
    """Dye [runs, STEPS, X, Y] and flow [runs, STEPS, X, Y, 2]: upwind advection by a flow without divergence, and
    diffusion."""
    dye, begin, end = smooth(runs, 4), smooth(runs, 3), smooth(runs, 3)
    dyes, flows = [], []
    for step in range(STEPS):
        share = step / (STEPS - 1)
        stream = ((1 - share) * begin + share * end) * 3
        u, v = slope(stream, 2), -slope(stream, 1)
        dyes.append(dye)
        flows.append(np.stack([u, v], -1))
        for _ in range(8):
            forward = [np.roll(dye, -1, axis) - dye for axis in (1, 2)]
            backward = [dye - np.roll(dye, 1, axis) for axis in (1, 2)]
            change = sum(np.where(w > 0, w * b, w * f) for w, f, b in zip((u, v), forward, backward))
            dye = dye + 0.1 * (-change + 0.05 * sum(f - b for f, b in zip(forward, backward)))
    return np.stack(dyes, 1).astype("f4"), np.stack(flows, 1).astype("f4")


def write_well(path, dye, flow):
    with h5py.File(path, "w") as file:
        file.attrs["dataset_name"] = "made by examples/well/make.py"
        file.attrs["n_trajectories"], file.attrs["grid_type"] = len(dye), "cartesian"
        dimensions = file.create_group("dimensions")
        dimensions.attrs["spatial_dims"] = ["x", "y"]
        for name, size in (("time", STEPS), ("x", X), ("y", Y)):
            dimensions.create_dataset(name, data=np.arange(size, dtype="f4")).attrs["sample_varying"] = False
        for dim in ("x", "y"):
            group = file.create_group(f"boundary_conditions/{dim}_periodic")
            group.attrs["associated_dims"], group.attrs["bc_type"] = dim, "PERIODIC"
        for order, name, values in ((0, "dye", dye), (1, "flow", flow), (2, None, None)):
            group = file.create_group(f"t{order}_fields")
            group.attrs["field_names"] = [name] if name else []
            if name:
                field = group.create_dataset(name, data=values, compression="gzip", chunks=(1, 1) + values.shape[2:])
                field.attrs["dim_varying"] = [True, True]
                field.attrs["sample_varying"] = field.attrs["time_varying"] = True


def write_pdebench(path, dye):
    with h5py.File(path, "w") as file:
        file["tensor"] = dye
        file["t-coordinate"] = np.arange(STEPS + 1, dtype="f4")
        file["x-coordinate"], file["y-coordinate"] = np.arange(X, dtype="f4"), np.arange(Y, dtype="f4")


folder = sys.argv[1]
os.makedirs(folder + "/well", exist_ok=True)
all_dyes = []
for number in range(FILES):
    dye, flow = simulate(RUNS)
    write_well(f"{folder}/well/stirred_{number}.hdf5", dye, flow)
    all_dyes.append(dye)
write_pdebench(f"{folder}/stirred.hdf5", np.concatenate(all_dyes))
print(f"{folder}/well: {FILES} files of {RUNS} runs (The Well); {folder}/stirred.hdf5: the same dye (PDEBench)")
