# SPDX-License-Identifier: Apache-2.0
"""NetCDF-3 files as netCDF4 writes them, with what is in them: name, values, dims, attributes."""

import netCDF4
import numpy as np


def make_one(path, form):
    random = np.random.default_rng(7)
    with netCDF4.Dataset(path, "w", format=form) as file:
        for name, size in (("time", None), ("lat", 7), ("lon", 10)):
            file.createDimension(name, size)
        file.title = "made by netCDF4"
        expected = []

        def add(name, kind, dims, values, **attrs):
            fill = attrs.pop("_FillValue", None)
            variable = file.createVariable(name, kind, dims, fill_value=fill)
            variable.set_auto_maskandscale(False)
            variable.setncatts(attrs)
            if values.ndim:
                variable[: len(values)] = values
            else:
                variable[...] = values
            if fill is not None:
                attrs["_FillValue"] = np.dtype(kind).type(fill)
            expected.append((name, values, dims, attrs))

        kinds = ["i1", "i2", "i4", "f4", "f8"] + (
            ["u1", "u2", "u4", "i8", "u8"] if form == "NETCDF3_64BIT_DATA" else []
        )
        for kind in kinds:
            values = random.integers(0, 100, (5, 7, 10)).astype(kind)
            if kind[0] == "f":
                values = values * 0.37 + np.nan * (values == 7)
            values = values.astype(kind)
            add("rows_" + kind, kind, ("time", "lat", "lon"), values)
            add("fixed_" + kind, kind, ("lat", "lon"), values[0])
            add("odd_" + kind, kind, ("time", "lat"), values[:, :, 0])
        add("time", "f8", ("time",), np.arange(5.0), units="days since 2000-01-01")
        add(
            "packed",
            "i2",
            ("time", "lat", "lon"),
            random.integers(-9, 9, (5, 7, 10)).astype("i2"),
            _FillValue=3,
            scale_factor=np.float64(0.25),
            add_offset=np.float64(273.15),
            units="K",
            flag_values=np.array([1, 2], "i2"),
        )
        add("single", "i2", ("lat", "lon"), random.integers(-9, 9, (7, 10)).astype("i2"), scale_factor=np.float32(0.1))
        add("number", "i4", (), np.array(7, "i4"))
        add("text", "S1", ("lat", "lon"), np.array([list("abcdefghij")] * 7, "S1"), long_name="letters")
    return expected


def make(folder):
    return {
        form + ".nc": make_one(f"{folder}/{form}.nc", form)
        for form in ("NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF3_64BIT_DATA")
    }
