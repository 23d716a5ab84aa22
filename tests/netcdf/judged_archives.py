# SPDX-License-Identifier: Apache-2.0
"""Files of one archive that are kept apart: by variable, by time, by the hand that wrote them. What is in them together
is what xarray makes of them (combine_by_coords, concat), whose dates cftime gives."""

import warnings

import netCDF4
import numpy as np
import xarray

warnings.filterwarnings("ignore")

STEPS, H, W = 4, 3, 5
HOURS = [f"2000-01-01 {hour:02d}:00:00" for hour in range(2 * STEPS)]
DAYS = [f"2000-01-{day:02d} 00:00:00" for day in range(1, 2 * STEPS + 1)]


def write(
    path,
    fields,
    first=0,
    steps=STEPS,
    axis="time",
    units="hours since 2000-01-01",
    calendar=None,
    times=None,
    names=("lat", "lon"),
    kind="f8",
    noise=0.0,
    lat=None,
    attrs=None,
):
    """`fields`: name -> first value, or (first value, units); they change along `axis` unless it is None."""
    with netCDF4.Dataset(path, "w") as file:
        if axis:
            file.createDimension(axis, steps)
            time = file.createVariable(axis, kind, (axis,))
            time.units, time.standard_name = units, "time"
            if calendar is not None:
                time.calendar = calendar
            time[:] = np.arange(first, first + steps) if times is None else times
        for name, unit, size in zip(names, ("degrees_north", "degrees_east"), (H, W)):
            file.createDimension(name, size)
            values = np.arange(size) if lat is None or unit == "degrees_east" else np.asarray(lat)
            file.createVariable(name, "f8", (name,))[:] = values + noise * (values == 0)
            file[name].units = unit
        dims = ((axis,) if axis else ()) + tuple(names)
        for name, start in fields.items():
            start, unit = start if isinstance(start, tuple) else (start, None)
            variable = file.createVariable(name, "f4", dims, **(attrs or {}))
            if unit:
                variable.units = unit
            variable[:] = values_of(start + 100 * first, steps if axis else None)


def values_of(start, steps):
    """[steps, H, W], or without steps [H, W]; each step is 100 more."""
    plane = start + np.arange(H * W).reshape(H, W) / 4
    return (plane if steps is None else plane + 100 * np.arange(steps)[:, None, None]).astype("f4")


def together(paths, names):
    """What xarray makes of the files together: name -> [steps, 1, lat, lon]."""
    read = xarray.combine_by_coords(
        [xarray.open_dataset(path).load() for path in paths],
        data_vars="minimal",
        coords="minimal",
        compat="no_conflicts",
        join="outer",
    )
    assert not any(read[name].isnull().any() for name in names)
    return {name: read[name].transpose("time", "lat", "lon").values[:, None] for name in names}


def a_file_a_variable(cases):
    for name, start in (("t2m", 0), ("msl", 1000)):
        write(cases.path(f"{name}_a.nc"), {name: start}, 0)
        write(cases.path(f"{name}_b.nc"), {name: start}, STEPS)
    write(cases.path("lsm.nc"), {"lsm": 7}, axis=None)
    write(cases.path("sst.nc"), {"sst": 3000}, 0, 3)
    write(cases.path("moved.nc"), {"sst": 3000}, 1)
    write(cases.path("in_days.nc"), {"sst": 3000}, times=np.arange(STEPS) / 24, units="days since 2000-01-01")
    files = ["t2m_b.nc", "msl_a.nc", "t2m_a.nc", "msl_b.nc"]
    wanted = together([cases.path(file) for file in files], ("t2m", "msl"))
    static = {"lsm": values_of(7, None)[None]}
    cases.expect(
        "one_each",
        ["t2m_a.nc", "msl_a.nc"],
        {name: values[:STEPS] for name, values in wanted.items()},
        HOURS[:STEPS],
        says=["  4 steps along 'time'"],
    )
    cases.expect("several_each", files, wanted, HOURS, says=["  8 steps along 'time'"])
    cases.expect(
        "turned", ["msl_a.nc", "t2m_a.nc"], {"msl": wanted["msl"][:STEPS], "t2m": wanted["t2m"][:STEPS]}, HOURS[:STEPS]
    )
    cases.expect("mask_last", files + ["lsm.nc"], wanted, HOURS, static=static, says=["lsm [lat 3, lon 5]"])
    cases.expect("mask_first", ["lsm.nc"] + files, wanted, HOURS, static=static)
    cases.expect(
        "other_units_of_time",
        ["t2m_a.nc", "in_days.nc"],
        {"t2m": wanted["t2m"][:STEPS], "sst": values_of(3000, STEPS)[:, None]},
        HOURS[:STEPS],
    )
    cases.refuse(
        "fewer_steps",
        ["t2m_a.nc", "sst.nc"],
        "data.open: files of other fields differ in their steps along 'time'\n  have  4 steps, 2000-01-01 00:00:00 to"
        " 2000-01-01 03:00:00 from 't2m_a.nc'\n  have  3 steps, 2000-01-01 00:00:00 to 2000-01-01 02:00:00 from"
        " 'sst.nc'\n  fix   give files of the same steps",
    )
    cases.refuse(
        "other_steps",
        ["t2m_a.nc", "moved.nc"],
        "step 0 differs: 2000-01-01 00:00:00 and 2000-01-01 01:00:00\n  fix   give files of the same steps",
    )
    # Years of two variables and of one: both lists are joined, though a file has fields of both.
    write(cases.path("both.nc"), {"t2m": 0, "msl": 1000}, 2 * STEPS)
    files = [*files, "both.nc"]
    cases.expect(
        "joined_late",
        files,
        together([cases.path(file) for file in files], ("t2m", "msl")),
        None,
        says=["  12 steps along 'time'"],
    )


def a_file_a_time(cases):
    """As xarray writes isel(time = i), whose time is a scalar coordinate."""
    write(cases.path("whole.nc"), {"t2m": 0, "msl": 1000})
    with xarray.open_dataset(cases.path("whole.nc")) as whole:
        for i in range(STEPS):
            whole.isel(time=i).to_netcdf(cases.path(f"scalar_{STEPS - i}.nc"))
        wanted = {name: whole[name].values[:, None] for name in ("t2m", "msl")}
    files = [f"scalar_{i}.nc" for i in range(1, STEPS + 1)]
    read = xarray.concat([xarray.open_dataset(cases.path(file)).load() for file in reversed(files)], "time")
    assert all(np.array_equal(read[name].values[:, None], values) for name, values in wanted.items())
    cases.expect(
        "scalar", "scalar_*.nc", wanted, HOURS[:STEPS], says=["t2m [time, lat 3, lon 5]", "  4 steps along 'time'"]
    )
    cases.expect("scalar_named", files, wanted, HOURS[:STEPS], options={"axis": "time"})
    cases.expect("scalar_one", "scalar_1.nc", {name: values[3:] for name, values in wanted.items()}, HOURS[3:4])
    cases.refuse("scalar_misspelt", files, "has no coordinate 'tim'", options={"axis": "tim"})


def one_archive(cases):
    """Files one after the other in time that differ in a name, a calendar, rounding, or the spelling of units."""
    first, both = values_of(0, STEPS)[:, None], values_of(0, 2 * STEPS)[:, None]
    write(cases.path("old.nc"), {"t": (0, "K")})

    def beside(name, options=None, says=None, **changes):
        write(cases.path(name + ".nc"), {"t": (0, changes.pop("unit", "K"))}, STEPS, **changes)
        if says:
            cases.refuse(name, ["old.nc", name + ".nc"], says, options=options)
        else:
            cases.expect(name, ["old.nc", name + ".nc"], {"t": both}, HOURS, options=options)

    beside("valid_time", axis="valid_time")
    beside("latitude", names=("latitude", "longitude"))
    beside("both_names", axis="valid_time", names=("latitude", "longitude"))
    beside("proleptic", calendar="proleptic_gregorian")
    beside("noise", noise=1.4e-14)
    beside("float32_noise", noise=3e-6)
    beside(
        "shifted",
        noise=0.01,
        says=(
            "differ in coordinates of 'lat', element 0\n  have  0.0 in 'old.nc'\n  have  0.01 in 'shifted.nc'\n  fix   "
            'open them apart, or give may_differ = {"coordinates"}'
        ),
    )
    beside("shifted_allowed", noise=0.01, options={"may_differ": ["coordinates"]})
    for name, unit in (("kelvin", "kelvin"), ("degk", "degK"), ("degrees", "degrees_kelvin")):
        beside(name, unit=unit)
    beside(
        "celsius",
        unit="degC",
        says=(
            "differ in the units of 't'\n  have  'K' in 'old.nc'\n  have  'degC' in 'celsius.nc'\n  fix   open them"
            ' apart, or give may_differ = {"units"}, which takes what the first says'
        ),
    )
    beside("celsius_allowed", unit="degC", options={"may_differ": "units"})
    beside(
        "lunar_option",
        unit="degC",
        options={"may_differ": ["unit"]},
        says="data.open: unknown may_differ 'unit'; did you mean 'units'?",
    )
    beside(
        "noleap",
        calendar="noleap",
        says=(
            "differ in the calendar\n  have  standard in 'old.nc'\n  have  noleap in 'noleap.nc'\n  fix   open them "
            'apart, or give may_differ = {"calendar"}'
        ),
    )
    beside("noleap_allowed", calendar="noleap", options={"may_differ": ["calendar"]})
    cases.expect("alone", "old.nc", {"t": first}, HOURS[:STEPS])


def spellings_of_units(cases):
    both = values_of(0, 2 * STEPS)[:, None]
    write(cases.path("wind_a.nc"), {"t": (0, "m s**-1")})
    for number, unit in enumerate(("m/s", "m s-1", "meters/second", "m.s-1", "m s^-1", "s-1 m")):
        write(cases.path(f"wind_{number}.nc"), {"t": (0, unit)}, STEPS)
        cases.expect(f"wind_{number}", ["wind_a.nc", f"wind_{number}.nc"], {"t": both}, HOURS)


def calendars_before_the_reform(cases):
    """Before 1582 the two calendars differ by days."""
    write(cases.path("past.nc"), {"t": 0}, units="hours since 1500-01-01", calendar="standard")
    write(
        cases.path("past_proleptic.nc"), {"t": 0}, STEPS, units="hours since 1500-01-01", calendar="proleptic_gregorian"
    )
    cases.refuse("before_the_reform", ["past.nc", "past_proleptic.nc"], "differ in the calendar")


def expect_times(cases, name, texts, options=None, says=(), **changes):
    write(cases.path(name + ".nc"), {"t": 0}, **changes)
    t = {"t": values_of(0, STEPS)[:, None]}
    cases.expect(name, name + ".nc", t, texts, options=options, says=says)


def spellings_of_dates(cases):
    """Dates in other spellings, as pandas and cftime read them."""
    for name, since in (
        ("slash", "2000/01/01 00:00"),
        ("slash_short", "2000/1/1"),
        ("compact", "20000101"),
        ("compact_hour", "20000101T00"),
        ("dots", "2000.01.01"),
        ("year", "2000"),
        ("month", "2000-01"),
        ("zone", "2000-01-01 00:00:00.0 UTC"),
    ):
        expect_times(cases, name, DAYS[:STEPS], units="days since " + since)
        with xarray.open_dataset(cases.path(name + ".nc")) as data:
            assert [str(x)[:10] for x in data.time.values] == [text[:10] for text in DAYS[:STEPS]]
    expect_times(
        cases,
        "nanoseconds",
        HOURS[:STEPS],
        units="nanoseconds since 2000-01-01",
        kind="i8",
        times=np.arange(STEPS) * 3600 * 10**9,
    )
    months = netCDF4.num2date(np.arange(STEPS) + 0.5, "months since 1960-01-01", "360_day")
    expect_times(
        cases,
        "months_360",
        [x.strftime("%Y-%m-%d %H:%M:%S") for x in months],
        units="months since 1960-01-01",
        calendar="360_day",
        times=np.arange(STEPS) + 0.5,
    )
    years = netCDF4.num2date(np.arange(STEPS), "common_years since 1960-01-01", "noleap")
    expect_times(
        cases,
        "common_years",
        [x.strftime("%Y-%m-%d %H:%M:%S") for x in years],
        units="common_years since 1960-01-01",
        calendar="noleap",
    )


def times_without_dates(cases):
    """cftime refuses their units: nothing can be said of their dates."""
    t = {"t": values_of(0, STEPS)[:, None]}
    numbers = [str(float(x)) for x in range(STEPS)]
    no_dates = ["  4 steps along 'time', 0.0 to 3.0 (numbers, no dates)"]
    for name, units, calendar in (
        ("year_zero", "days since 0000-01-01 00:00:00", None),
        ("no_calendar", "days since 2000-01-01", "none"),
        ("months", "months since 2000-01-01", "standard"),
        ("months_noleap", "months since 2000-01-01", "noleap"),
    ):
        try:
            netCDF4.num2date(0, units, calendar or "standard")
            raise AssertionError(units)
        except ValueError:
            expect_times(cases, name, numbers, units=units, calendar=calendar, says=no_dates)
    expect_times(
        cases, "refused_dates", numbers, units="days since 2000-01-01", options={"dates": False}, says=no_dates
    )
    write(cases.path("lunar.nc"), {"t": 0}, calendar="lunar")
    cases.refuse("lunar", "lunar.nc", "unknown calendar 'lunar'")
    cases.expect("lunar_numbers", "lunar.nc", t, numbers, options={"dates": False})
    write(cases.path("never.nc"), {"t": 0}, units="days since 2000-13-01")
    cases.refuse("never", "never.nc", "or give dates = false, for times that are numbers")
    # Numbers that count from other days, and say no dates, are of two kinds.
    write(cases.path("months_later.nc"), {"t": 0}, STEPS, units="months since 2001-01-01", calendar="standard")
    cases.refuse("months_of_two", ["months.nc", "months_later.nc"], "differ in the units of times without dates")


def missing_times(cases):
    t = {"t": values_of(0, STEPS)[:, None]}
    for name, hole in (("nat", np.nan), ("nat_masked", np.ma.masked)):
        times = np.ma.arange(STEPS, dtype="f8")
        times[2] = hole
        write(cases.path(name + ".nc"), {"t": 0}, times=times)
        with netCDF4.Dataset(cases.path(name + ".nc")) as data:
            assert np.ma.getmaskarray(np.ma.masked_invalid(data["time"][:])).tolist() == [False, False, True, False]
        cases.refuse(
            name,
            name + ".nc",
            "'time' has no value at step 2\n  have  layout 'cf'\n  fix   write the time that is missing; or give dates"
            " = false",
        )
        cases.expect(
            name + "_counted", name + ".nc", t, [""], options={"dates": False}, says=["  4 steps along 'time', 0 gaps"]
        )


def make(cases):
    a_file_a_variable(cases)
    a_file_a_time(cases)
    one_archive(cases)
    spellings_of_units(cases)
    calendars_before_the_reform(cases)
    spellings_of_dates(cases)
    times_without_dates(cases)
    missing_times(cases)
