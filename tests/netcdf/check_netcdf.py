# SPDX-License-Identifier: Apache-2.0
"""Files that Moonhalo wrote on several ranks, in the hands of netCDF4, xarray and h5py, and back again.

check_netcdf.py PROGRAM PYTHON SCRIPT: PYTHON is that of the environment that `./dev test` makes; without it the test is
skipped (status 77)."""

import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)) + "/../support")
from own_python import check, enter, finish

program, python, script = sys.argv[1:4]
enter(python, "h5py", "netCDF4", "xarray")

import h5py
import netCDF4
import numpy as np
import xarray


def make_theirs(path):
    """A packed field of another program, with a land mask."""
    with netCDF4.Dataset(path, "w") as file:
        for name, size in (("time", None), ("lat", 6), ("lon", 4)):
            file.createDimension(name, size)
        time = file.createVariable("time", "f8", ("time",))
        time.units, time.calendar = "days since 2000-01-01", "noleap"
        file.createVariable("lat", "f4", ("lat",))[:] = np.linspace(-50, 50, 6)
        file["lat"].units = "degrees_north"
        sst = file.createVariable("sst", "i2", ("time", "lat", "lon"), fill_value=-32768)
        sst.scale_factor, sst.add_offset, sst.units, sst.standard_name = 0.01, 5.0, "degC", "sea_surface_temperature"
        values = np.ma.array(np.arange(72).reshape(3, 6, 4) / 10, mask=np.arange(72).reshape(3, 6, 4) % 7 == 0)
        sst[:] = values
        time[:] = [0, 31, 59]


def field(steps):
    return np.arange(steps * 40, dtype="f4").reshape(steps, 5, 8) * 0.25


def check_ncdump(path):
    """The NetCDF library's own tool, of Debian; another build than the one in netCDF4's wheel."""
    if not shutil.which("ncdump"):
        check("ncdump is installed", not os.environ.get("MOONHALO_REQUIRE_TEST_PACKAGES"))
        return
    ran = subprocess.run(["ncdump", "-t", "-v", "time,t2m", path], capture_output=True, text=True)
    check("ncdump reads it: " + ran.stderr, ran.returncode == 0)
    check("ncdump: dims", re.search(r"float t2m\(time, latitude, longitude\)", ran.stdout))
    check("ncdump: dates", '"2001-12-31 18"' in ran.stdout)
    numbers = ran.stdout[ran.stdout.index(" t2m =") :].split("=")[1].split(";")[0]
    check("ncdump: values", np.array_equal(np.fromstring(numbers, sep=",", dtype="f4"), field(6).ravel()))


def check_written(folder):
    path = folder + "/written.nc"
    check_ncdump(path)
    with xarray.open_dataset(path) as data:
        check("names of dims", data.t2m.dims == ("time", "latitude", "longitude"))
        check("values", np.array_equal(data.t2m.values, field(6)))
        check("time decoded", str(data.time.values[1]) == "2001-12-31T18:00:00.000000000")
        check("coordinates", set(data.coords) == {"time", "latitude", "longitude"})
        check(
            "selection by coordinates", float(data.t2m.sel(latitude=60, longitude=90).isel(time=2)) == field(6)[2, 0, 2]
        )
        packed = np.arange(12.0).reshape(6, 2) * 0.5 + 10
        packed[1, 1] = np.nan
        check("packed", np.array_equal(data.packed.values, packed, equal_nan=True))
        check("a dim without coordinates", data.packed.dims == ("time", "bounds") and "bounds" not in data)
        check("umlauts", data.t2m.attrs["long_name"] == "Temperatur in 2 m Höhe")
        check("conventions", data.attrs == {"Conventions": "CF-1.8", "title": "written by several ranks"})
    with netCDF4.Dataset(path, "a") as file:
        check("order of variables", list(file.variables) == ["t2m", "packed", "time", "latitude", "longitude"])
        check("fill value of the dataset's type", file["t2m"]._FillValue.dtype == np.float32)
        check("range of the dataset's type", file["t2m"].valid_range.dtype == np.float32)
        check("fill value of integers", file["packed"]._FillValue.dtype == np.int16)
        check("text that Fortran reads", file["t2m"].units == "K")
        speed = file["group/deep/speed"]
        check("dims of a group around", speed.dimensions == ("time", "latitude", "longitude"))
        check("a field in a group", np.array_equal(speed[:], field(6)))
        added = file.createVariable("added", "f4", ("time", "longitude"), zlib=True)
        added[:] = 7
        file["group"].createGroup("more").note = "by netCDF4"
        file["t2m"].comment = "by netCDF4"
    with h5py.File(path) as file:
        check("one length", file["t2m"].attrs.get_id("units").get_type().is_variable_str() is False)
        check("filters", file["t2m"].compression == "gzip" and file["t2m"].shuffle)
        check("h5py", np.array_equal(file["t2m"][:], field(6)) and (file["added"][:] == 7).all())


def check_grown(folder):
    with netCDF4.Dataset(folder + "/grown.nc", "a") as file:
        check("unlimited", file.dimensions["time"].isunlimited() and len(file.dimensions["time"]) == 4)
        check("grown", np.array_equal(file["t2m"][2], field(1)[0] + 2))
        file["t2m"][4] = field(1)[0] + 4
        file["time"][4] = 4
    with xarray.open_dataset(folder + "/grown.nc") as data:
        check("grown by netCDF4", np.array_equal(data.t2m.values, np.stack([field(1)[0] + s for s in range(5)])))
        check("time of grown", str(data.time.values[4])[:10] == "1990-01-05")


def check_like(folder):
    with xarray.open_dataset(folder + "/theirs.nc") as theirs, xarray.open_dataset(folder + "/like.nc") as ours:
        part = theirs.sst.isel(time=slice(1, None), lat=slice(2, 6))
        check("like: dims", ours.forecast.dims == part.dims)
        check("like: time", (ours.time.values == part.time.values).all())
        check("like: latitude", np.array_equal(ours.lat.values, part.lat.values) and ours.lat.attrs == part.lat.attrs)
        check("like: values", np.allclose(ours.forecast.values, part.values + 1, equal_nan=True, atol=1e-5))
        check("like: no packing", "scale_factor" not in ours.forecast.encoding and ours.forecast.attrs == part.attrs)


with tempfile.TemporaryDirectory() as folder:
    for ranks in (1, 3):
        make_theirs(folder + "/theirs.nc")
        subprocess.run([program, "run", script, "--ranks", str(ranks), "--", folder], check=True)
        check_written(folder)
        check_grown(folder)
        check_like(folder)
finish()
