# SPDX-License-Identifier: Apache-2.0
"""Missing values as NetCDF (netCDF4) and Zarr (its specification, and xarray's habit) tell of them."""

import warnings

import h5py
import netCDF4
import numpy as np
import xarray
import zarr

warnings.filterwarnings("ignore")  # text that netCDF4 takes no notice of; consolidated metadata

STEPS, H, W = 4, 3, 5
DATES = [f"2000-01-01 {hour:02d}:00:00" for hour in range(STEPS)]
COORDINATES = (("time", "hours since 2000-01-01", STEPS), ("lat", "degrees_north", H), ("lon", "degrees_east", W))


def new_netcdf(path, form="NETCDF4"):
    file = netCDF4.Dataset(path, "w", format=form)
    for name, units, size in COORDINATES:
        file.createDimension(name, size)
        file.createVariable(name, "f8", (name,))[:] = np.arange(size)
        file[name].units = units
    return file


def ramp(kind):
    return (np.arange(STEPS * H * W).reshape(STEPS, H, W) % 50 + 1).astype(kind)


def masked_by_netcdf4(path, names):
    """[steps, 1, lat, lon] with NaN where netCDF4 masks."""
    with netCDF4.Dataset(path) as file:
        return {name: np.ma.filled(file[name][:].astype("f8"), np.nan)[:, None] for name in names}


def default_fills(cases, form, kinds):
    """Cells that nobody wrote, in every type; beside _FillValue, missing_value, scale and range; with filling switched
    off."""
    path = cases.path(form + ".nc")
    names = []
    with new_netcdf(path, form) as file:

        def add(name, kind, values, fill=None, **attrs):
            variable = file.createVariable(name, kind, ("time", "lat", "lon"), fill_value=fill)
            variable.set_auto_maskandscale(False)
            variable.setncatts(attrs)
            variable[:] = values
            names.append(name)

        for kind in kinds:
            default, values = netCDF4.default_fillvals[kind], ramp(kind)
            values[1, 2, 1:4] = np.array(default, kind)
            add(kind + "_default", kind, values)
            add(kind + "_own", kind, values, fill=7)
            add(kind + "_missing", kind, values, missing_value=np.array(9, kind))
            add(kind + "_scaled", kind, values, scale_factor=np.float64(0.5), add_offset=np.float64(-3))
            add(kind + "_range", kind, values, valid_range=np.array([4, 40], kind))
            if form == "NETCDF4":
                variable = file.createVariable(kind + "_nofill", kind, ("time", "lat", "lon"), fill_value=False)
                variable.set_auto_mask(False)
                variable[:] = values
                names.append(variable.name)
        part = file.createVariable("never_written", "f4", ("time", "lat", "lon"))
        part[2] = 5
        names.append("never_written")
    wanted = masked_by_netcdf4(path, names)
    assert all(np.isnan(values).any() and not np.isnan(values).all() for values in wanted.values())
    cases.expect(form, form + ".nc", wanted, DATES)


def bytes_have_none(cases):
    """NetCDF's users' guide: no default fill value of bytes is assumed, as ncdump does not; netCDF4 masks them."""
    for form in ("NETCDF4", "NETCDF3_CLASSIC"):
        path = cases.path(f"bytes_{form}.nc")
        values = ramp("i1")
        values[0, 0] = -127
        with new_netcdf(path, form) as file:
            variable = file.createVariable("b", "i1", ("time", "lat", "lon"))
            variable.set_auto_mask(False)
            variable[:] = values
        assert np.isnan(masked_by_netcdf4(path, ["b"])["b"]).any()
        cases.expect("bytes_" + form, f"bytes_{form}.nc", {"b": values[:, None]}, DATES)


def plain_hdf5(cases):
    """HDF5 that NetCDF's library has not made: 65535 is a number there, and so is 0 where it is the fill value."""
    values = ramp("u2")
    values[0, 1] = 65535
    with h5py.File(cases.path("plain.h5"), "w") as file:
        file.create_dataset("u", data=values, fillvalue=3)
        file.create_dataset(
            "f", data=np.where(values == 65535, np.float32(netCDF4.default_fillvals["f4"]), values).astype("f4")
        )
    fill = float(np.float32(netCDF4.default_fillvals["f4"]))
    cases.expect(
        "plain", "plain.h5", {"u": values[:, None], "f": np.where(values == 65535, fill, values.astype("f8"))[:, None]}
    )


def texts(cases):
    """missing_value as text: netCDF4 and xarray take no notice of it. One that is a number is read as that here."""
    path = cases.path("texts.nc")
    values = ramp("f4")
    values[2, 1] = -99
    with new_netcdf(path) as file:
        for name in ("nan", "none", "empty", "number", "spaced"):
            file.createVariable(name, "f4", ("time", "lat", "lon"))[:] = values
    with h5py.File(path, "a") as file:
        for name, text in (("nan", "NaN"), ("none", "none"), ("empty", ""), ("number", "-99"), ("spaced", " -9.9e1 ")):
            file[name].attrs["missing_value"] = np.bytes_(text)
        file["nan"].attrs["valid_min"] = np.bytes_("unknown")
    wanted = masked_by_netcdf4(path, ("nan", "none", "empty", "number", "spaced"))
    for name in ("number", "spaced"):
        assert not np.isnan(wanted[name]).any()
        wanted[name] = np.where(wanted[name] == -99, np.nan, wanted[name])
    cases.expect("texts", "texts.nc", wanted, DATES)


def new_zarr(path, version):
    """A group with coordinates as zarr-python writes them; a function that adds arrays with names of dims."""
    group = zarr.create_group(path, zarr_format=version)

    def add(name, values, dims, write=True, attrs=None, **options):
        if version == 3:
            options["dimension_names"] = dims
        else:
            attrs = {**(attrs or {}), "_ARRAY_DIMENSIONS": list(dims)}
        made = group.create_array(
            name,
            shape=values.shape,
            dtype=values.dtype,
            chunks=(1,) * (values.ndim > 1) + values.shape[values.ndim > 1 :],
            attributes=attrs or {},
            **options,
        )
        if write:
            made[...] = values
        return made

    for name, units, size in COORDINATES[1:]:
        add(name, np.arange(size, dtype="f8"), (name,), attrs={"units": units})
    return add


def zarr_fills(cases):
    """Specification: fill_value is what chunks without a file hold."""
    for version in (2, 3):
        name = f"fill{version}.zarr"
        add = new_zarr(cases.path(name), version)
        add("time", np.arange(STEPS, dtype="f8"), ("time",), attrs={"units": COORDINATES[0][1]})
        dims, dry = ("time", "lat", "lon"), ramp("f4") - 1
        dry[1] = 0
        add("dry", dry, dims)
        holes = add("holes", dry, dims, write=False)
        holes[:2] = dry[:2]
        marked = add("marked", dry.astype("i2"), dims, attrs={"_FillValue": 3, "scale_factor": 0.5, "add_offset": 1.0})
        assert marked.fill_value == 0 and dry[0, 0, 0] == 0
        raw = zarr.open_group(cases.path(name), mode="r")
        packed = raw["marked"][:].astype("f8")
        cases.expect(
            f"zarr{version}",
            name,
            {
                "dry": raw["dry"][:][:, None],
                "holes": raw["holes"][:][:, None],
                "marked": np.where(packed == 3, np.nan, packed * 0.5 + 1)[:, None],
            },
            DATES,
        )


def zarr_of_xarray(cases):
    """xarray writes _FillValue as the fill_value of Zarr 2, and as an attribute to Zarr 3."""
    values = ramp("f8") / 4
    values[2, 1] = np.nan
    times = np.datetime64("2000-01-01T00", "ns") + np.arange(STEPS) * np.timedelta64(1, "h")
    data = xarray.Dataset(
        {"t": (("time", "lat", "lon"), values), "f": (("time", "lat", "lon"), values.astype("f4"))},
        {
            "time": times,
            "lat": ("lat", np.arange(H) * 1.0, {"units": "degrees_north"}),
            "lon": ("lon", np.arange(W) * 1.0, {"units": "degrees_east"}),
        },
    )
    for version in (2, 3):
        name = f"xarray{version}.zarr"
        data.to_zarr(
            cases.path(name),
            zarr_format=version,
            encoding={
                "t": {"dtype": "i2", "scale_factor": 0.25, "_FillValue": -99},
                "f": {"_FillValue": np.float32(1e20)},
            },
        )
        with xarray.open_zarr(cases.path(name)) as read:
            cases.expect(f"xarray{version}", name, {"t": read.t.values[:, None], "f": read.f.values[:, None]}, DATES)


def zarr_times(cases):
    """numpy's datetime64 as the time of a store, as zarr-python writes it, in every unit of fixed length."""
    for version in (2, 3):
        for kind, step in (
            ("M8[ns]", 3600 * 10**9),
            ("M8[us]", 3600 * 10**6),
            ("M8[ms]", 3600 * 1000),
            ("M8[s]", 3600),
            ("M8[600s]", 6),
            (">M8[m]", 60),
            ("M8[h]", 1),
        ):
            plain = np.dtype(kind).newbyteorder("=")
            first = np.datetime64("2000-01-01T00").astype(plain).astype("i8")
            times = (first + np.arange(STEPS) * step).view(plain)
            name = f"times{version}_{kind.strip('>').replace('[', '_').strip(']')}"
            add = new_zarr(cases.path(name + ".zarr"), version)
            add("time", times.astype(kind) if version == 2 else times, ("time",))
            values = ramp("f4")
            add("t", values, ("time", "lat", "lon"))
            texts = [str(t).replace("T", " ") for t in times.astype("M8[s]")]
            assert texts == DATES
            cases.expect(name, name + ".zarr", {"t": values[:, None]}, texts)


def make(cases):
    wide = ["i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"]
    default_fills(cases, "NETCDF4", wide)
    default_fills(cases, "NETCDF4_CLASSIC", ["i2", "i4", "f4", "f8"])
    default_fills(cases, "NETCDF3_CLASSIC", ["i2", "i4", "f4", "f8"])
    default_fills(cases, "NETCDF3_64BIT_OFFSET", ["i2", "f4"])
    default_fills(cases, "NETCDF3_64BIT_DATA", wide)
    bytes_have_none(cases)
    plain_hdf5(cases)
    texts(cases)
    zarr_fills(cases)
    zarr_of_xarray(cases)
    zarr_times(cases)
