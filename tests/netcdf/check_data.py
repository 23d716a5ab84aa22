# SPDX-License-Identifier: Apache-2.0
"""Files of others (netCDF4, h5py) through mh.data on several ranks: every batch must be, bit by bit, what numpy makes
of them (X18, X21).

check_data.py PROGRAM PYTHON SCRIPT: as check_netcdf.py."""

import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)) + "/../support")
from own_python import check, enter, finish

program, python, script = sys.argv[1:4]
enter(python, "h5py", "netCDF4")

import h5py
import netCDF4
import numpy as np

H, W = 7, 6
rng = np.random.default_rng(3)


def noise(*shape):
    return rng.standard_normal(shape).astype("f4")


def cf(path, form, steps, units, times, scale, offset):
    """ERA5's habits: packed, chunks of one step, time unlimited; v is [time, longitude, latitude]."""
    with netCDF4.Dataset(path, "w", format=form) as file:
        file.createDimension("valid_time", None)
        for name, size in (("lat", H), ("lon", W), ("bnds", 2), ("letters", 4)):
            file.createDimension(name, size)
        time = file.createVariable("valid_time", "i4", ("valid_time",))
        time.units, time.calendar, time.standard_name, time.bounds = units, "gregorian", "time", "time_bnds"
        file.createVariable("time_bnds", "f8", ("valid_time", "bnds"))
        file.createVariable("label", "S1", ("letters",))
        for name, unit, values in (
            ("lat", "degrees_north", np.linspace(90, -90, H)),
            ("lon", "degrees_east", np.arange(W) * 60.0),
        ):
            file.createVariable(name, "f4", (name,))[:] = values
            file[name].units = unit
        file.createVariable("crs", "i4", ()).grid_mapping_name = "latitude_longitude"
        options = dict(zlib=True, shuffle=True, chunksizes=(1, H, W)) if form == "NETCDF4" else {}
        t2m = file.createVariable("t2m", "i2", ("valid_time", "lat", "lon"), fill_value=-32767, **options)
        t2m.scale_factor, t2m.add_offset, t2m.units = scale, offset, "K"
        t2m.set_auto_maskandscale(False)
        packed = rng.integers(-3000, 3000, (steps, H, W)).astype("i2")
        packed[1, 2, 3] = -32767
        t2m[:] = packed
        v, u = noise(steps, W, H), noise(steps, H, W)
        file.createVariable("v", "f4", ("valid_time", "lon", "lat"))[:] = v
        file.createVariable("u", "f4", ("valid_time", "lat", "lon"), **options)[:] = u
        time[:] = times
    decoded = packed.astype("f8") * scale + offset
    decoded[packed == -32767] = np.nan
    return {"t2m": decoded[:, None], "v": v.transpose(0, 2, 1)[:, None], "u": u[:, None]}


def windows(fields, steps, anchors):
    """[anchors, channels of all steps and fields, space...], in float32 as loaders give them"""
    return np.stack([np.concatenate([field[a + s] for s in steps for field in fields]) for a in anchors]).astype("f4")


def make_cf(folder):
    # Files by name are not those by time: the second year's file comes first in the folder's order.
    late = cf(folder + "/era_a.nc", "NETCDF3_64BIT_OFFSET", 5, "days since 2001-01-01", np.arange(5), 0.003, 250.5)
    early = cf(
        folder + "/era_b.nc",
        "NETCDF4",
        6,
        "hours since 1900-01-01 00:00:00.0",
        885360 - 144 + 24 * np.arange(6),
        0.0017,
        265.1,
    )
    fields = {name: np.concatenate([early[name], late[name]]) for name in early}
    anchors = range(1, 10)
    read = {"t2m": fields["t2m"][:10], "v": fields["v"][:10], "u": fields["u"][2:]}
    return read, windows([fields["t2m"], fields["v"]], (-1, 0), anchors), windows([fields["u"]], (1,), anchors)


def make_well(folder):
    os.mkdir(folder + "/well")
    inputs, targets, all_fields = [], [], {"tracer": [], "velocity": [], "stress": []}
    for k, trajectories in enumerate((2, 1)):
        steps = 5
        tracer, velocity, stress = (
            noise(trajectories, steps, H, W),
            noise(trajectories, steps, H, W, 2),
            noise(trajectories, steps, H, W, 2, 2),
        )
        with h5py.File(f"{folder}/well/run_{k}.hdf5", "w") as file:
            file.attrs["n_trajectories"] = trajectories
            file.attrs["grid_type"] = "cartesian"
            group = file.create_group("dimensions")
            group.attrs["spatial_dims"] = ["x", "y"]
            for name, size in (("time", steps), ("x", H), ("y", W)):
                group.create_dataset(name, data=np.linspace(0, 1, size, dtype="f4")).attrs["sample_varying"] = False
            wall = file.create_group("boundary_conditions/y_wall")
            wall.attrs["associated_dims"], wall.attrs["bc_type"] = "y", "WALL"
            wall["mask"] = np.zeros(W, bool)
            for order, fields in ((0, {"tracer": tracer}), (1, {"velocity": velocity}), (2, {"stress": stress})):
                group = file.create_group(f"t{order}_fields")
                group.attrs["field_names"] = list(fields)
                for name, values in fields.items():
                    data = group.create_dataset(name, data=values, compression="gzip", chunks=(1, 1) + values.shape[2:])
                    data.attrs["dim_varying"] = [True, True]
                    data.attrs["sample_varying"] = data.attrs["time_varying"] = True
            group = file["t0_fields"]
            profile = group.create_dataset("profile", data=noise(W))
            profile.attrs["dim_varying"], profile.attrs["sample_varying"], profile.attrs["time_varying"] = (
                [False, True],
                False,
                False,
            )
        for r in range(trajectories):
            first = [tracer[r][:, None], np.moveaxis(velocity[r], -1, 1)]
            second = np.moveaxis(stress[r].reshape(steps, H, W, 4), -1, 1)
            inputs.append(windows(first, (0, 1), range(3)))
            targets.append(windows([second], (2,), range(3)))
            for name, values in zip(all_fields, (*first, second)):
                all_fields[name].append(values)
    # Windows read steps 0 to 3 as inputs, 2 to 4 as targets.
    read = {"tracer": slice(0, 4), "velocity": slice(0, 4), "stress": slice(2, 5)}
    fields = {name: np.concatenate([run[read[name]] for run in runs]) for name, runs in all_fields.items()}
    return fields, np.concatenate(inputs), np.concatenate(targets)


def make_lzf(folder):
    velocity, particles = noise(2, 4, H, W, 2), noise(2, 4, H, W, 1)
    with h5py.File(folder + "/ns_incom.h5", "w") as file:
        for name, values in (("velocity", velocity), ("particles", particles)):
            file.create_dataset(name, data=values, compression="lzf", shuffle=True, chunks=(1, 1) + values.shape[2:])
        file["t"] = np.tile(np.arange(4, dtype="f4"), (2, 1))
        file.create_dataset("force", data=noise(2, H, W, 2), compression="lzf")
    first, second = np.moveaxis(velocity, -1, 2), np.moveaxis(particles, -1, 2)
    return (
        {"velocity": first[:, :3].reshape(6, 2, H, W), "particles": second[:, 1:].reshape(6, 1, H, W)},
        first[:, :3].reshape(6, 2, H, W),
        second[:, 1:].reshape(6, 1, H, W),
    )


def make_seeds(folder):
    runs = [noise(5, H, W, 2) for _ in range(3)]
    with h5py.File(folder + "/diff_react.h5", "w") as file:
        for k, run in enumerate(runs):
            file.create_dataset(f"{k:04d}/data", data=run, compression="lzf")
            for name, size in (("x", H), ("y", W), ("t", 5)):
                file[f"{k:04d}/grid/{name}"] = np.linspace(0, 1, size, dtype="f4")
    moved = [np.moveaxis(run, -1, 1) for run in runs]
    return (
        {"data": np.concatenate(moved)},
        np.concatenate([run[:3] for run in moved]),
        np.concatenate([run[2:] for run in moved]),
    )


def make_plain(folder):
    x, y = noise(9, 3, H, W).astype("f2"), rng.integers(0, 9, (9, H, W))
    with h5py.File(folder + "/plain.h5", "w") as file:
        file["x"], file["y"], file["names"] = x, y, ["a", "b"]
    x, y = x.astype("f4"), y.astype("f4")[:, None]
    return {"x": x, "y": y}, x, y


def make_makani(folder):
    os.mkdir(folder + "/makani")
    years = [noise(4, 3, H, W), noise(5, 3, H, W)]
    for k, fields in enumerate(years):
        with h5py.File(f"{folder}/makani/{2001 + k}.h5", "w") as file:
            file.create_dataset("fields", data=fields, chunks=(1, 1, H, W))
            file["timestamp"] = 978307200.0 + 21600 * (np.arange(len(fields)) + 4 * k)
            file["channel"] = ["u10m", "v10m", "t2m"]
            file["lat"], file["lon"] = np.linspace(90, -90, H), np.arange(W) * 60.0
            for i, name in enumerate(("timestamp", "channel", "lat", "lon")):
                file[name].make_scale(name)
                file["fields"].dims[i].attach_scale(file[name])
    fields = np.concatenate(years)
    return {"fields": fields}, windows([fields], (-1, 0), range(1, 8)), windows([fields], (1,), range(1, 8))


makers = {
    "cf": make_cf,
    "well": make_well,
    "lzf": make_lzf,
    "seeds": make_seeds,
    "plain": make_plain,
    "makani": make_makani,
}
with tempfile.TemporaryDirectory() as folder:
    expected = {name: make(folder) for name, make in makers.items()}
    run = subprocess.run([program, "run", script, "--ranks", "3", "--", folder], capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(run.stdout + run.stderr)
    check(
        "names of Makani's channels, and its times in\n" + run.stdout,
        "fields.t2m@-1" in run.stdout and "2001-01-01 06:00:00" in run.stdout,
    )
    with h5py.File(folder + "/loaded.h5") as loaded:
        for name, (fields, inputs, targets) in expected.items():
            for kind, wanted in (("inputs", inputs), ("targets", targets)):
                found = loaded[f"{name}/{kind}"][...]
                check(
                    f"{name}/{kind}: {found.shape} {found.dtype}, expected {wanted.shape}",
                    found.dtype == np.float32 and np.array_equal(found, wanted, equal_nan=True),
                )
            for field, values in fields.items():
                axes = (0, *range(2, values.ndim))
                values = values.astype("f8")
                for what, wanted in (("mean", np.nanmean(values, axis=axes)), ("std", np.nanstd(values, axis=axes))):
                    found = loaded[f"{name}/{what}/{field}"][...]
                    check(
                        f"{name}: {what} of {field} is {found}, expected {wanted}",
                        np.allclose(found, wanted, rtol=1e-12, atol=1e-12),
                    )
finish()
