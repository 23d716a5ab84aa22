# SPDX-License-Identifier: Apache-2.0
"""Files of other programs, and what their formats and libraries say is in them: netCDF4's masks and dates, zarr's and
xarray's values. mh.data must say the same on 1 and 3 ranks, by batches, single steps and statistics (X18, X21).

check_judges.py KIND PROGRAM PYTHON SCRIPT: KIND is a module judged_KIND.py beside this one, whose make(cases) makes
files and says what is in them; the rest is as for check_netcdf.py."""

import importlib
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)) + "/../support")
from own_python import check, enter, finish

kind, program, python, script = sys.argv[1:5]
enter(python, "h5py", "netCDF4", "xarray", "zarr")

import h5py
import numpy as np


class Cases:
    """Files below a folder, and what must be read of them."""

    def __init__(self, folder):
        self.folder, self.list, self.wanted = folder, [], {}

    def path(self, name):
        return os.path.join(self.folder, name)

    def expect(self, name, source, fields, times=None, options=None, static=None, says=()):
        """`fields`: name -> [steps, channels, space...] with NaN where the judge says that a value is missing. `times`:
        texts, or None where steps have none; `static`: name -> [channels, space...]. `says`: what print(data) must
        say."""
        fields = {key: np.asarray(values, "f8") for key, values in fields.items()}
        static = {key: np.asarray(values, "f8") for key, values in (static or {}).items()}
        self.list.append(
            {"name": name, "source": source, "options": options or {}, "fields": list(fields), "static": list(static)}
        )
        self.wanted[name] = fields, times, static, says

    def refuse(self, name, source, says, options=None):
        """`says`: what the one error must say, which is the same on all ranks."""
        self.list.append({"name": name, "source": source, "options": options or {}, "fields": ["t"], "refused": True})
        self.wanted[name] = says


def close(ours, wanted):
    """Packing and units are computed in another order than the judges do."""
    return ours.shape == wanted.shape and np.allclose(ours, wanted, rtol=1e-14, atol=0, equal_nan=True)


def check_read(what, out, fields, times, static, says, attrs):
    check(f"{what}: times {attrs['times']}", times is None or attrs["times"].split("|") == list(times))
    for text in says:
        check(f"{what}: {text!r} in\n{attrs['print']}", text in attrs["print"])
    for field, values in fields.items():
        check(
            f"{what}: steps of {field}:\n{out['read/' + field][()]}\nwanted\n{values}",
            close(out["read/" + field][()], values),
        )
        mean = np.nanmean(values.astype("f8"), axis=(0, *range(2, values.ndim)))
        check(
            f"{what}: mean of {field}: {out['mean/' + field][()]}, expected {mean}",
            np.allclose(out["mean/" + field][()], mean, rtol=1e-12),
        )
    whole = np.concatenate(list(fields.values()), 1)
    for ahead in (0, 2):
        check(f"{what}: batches, {ahead} ahead", close(out[f"loaded{ahead}"][()], whole))
        if static:
            check(
                f"{what}: static, {ahead} ahead",
                close(out[f"static{ahead}"][()], np.concatenate(list(static.values()), 0)),
            )


with tempfile.TemporaryDirectory() as folder:
    cases = Cases(folder)
    importlib.import_module("judged_" + kind).make(cases)
    with open(cases.path("cases.json"), "w") as file:
        json.dump(cases.list, file)
    for ranks in (1, 3):
        path = f"{folder}/out{ranks}.h5"
        subprocess.run([program, "run", script, "--ranks", str(ranks), "--", folder, path], check=True)
        with h5py.File(path) as out:
            attrs = {key: value.decode() if isinstance(value, bytes) else value for key, value in out.attrs.items()}
            for name, wanted in cases.wanted.items():
                what, own = (
                    f"{name} on {ranks}",
                    {key.split("@")[1]: value for key, value in attrs.items() if key.split("@")[0] == name},
                )
                if isinstance(wanted, str):
                    check(f"{what} says {own['refused']!r}, expected {wanted!r}", wanted in own["refused"])
                else:
                    check_read(what, out[name], *wanted, own)
finish()
