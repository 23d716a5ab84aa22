# SPDX-License-Identifier: Apache-2.0
"""Zarr folders as zarr-python writes them, of both versions, with what is in them: name, values, dims, attributes."""

import json
import os
import warnings

import numpy as np
import xarray
import zarr
from numcodecs import (
    CRC32,
    CRC32C,
    LZ4,
    Adler32,
    BitRound,
    Delta,
    FixedScaleOffset,
    Fletcher32,
    GZip,
    Quantize,
    Shuffle,
    Zlib,
)
from numcodecs import Blosc as Blosc2
from numcodecs import Zstd as Zstd2
from zarr.codecs import numcodecs as more
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec, TransposeCodec, ZstdCodec

warnings.filterwarnings("ignore", message="Consolidated metadata")


def field(kind, shape, seed=3):
    random = np.random.default_rng(seed)
    if kind == "bool":
        return random.integers(0, 2, shape).astype(bool)
    values = random.integers(0, 100, shape)
    if np.dtype(kind).kind == "f":
        values = values * 0.37
    if np.dtype(kind).kind == "c":
        values = values * 0.37 + 1j * random.integers(0, 100, shape)
    return values.astype(kind)


def rounded(values, codec):
    """What a codec that loses digits leaves of them."""
    flat = values.reshape(-1)
    return np.asarray(codec.decode(codec.encode(flat.copy()))).view(values.dtype).reshape(values.shape)


KINDS = ["bool", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]


class Writer:
    def __init__(self, path, version):
        self.version, self.expected = version, []
        self.group = zarr.create_group(path, zarr_format=version, attributes={"title": "made by zarr-python"})

    def add(self, name, values, dims=None, attrs=None, hole=None, **options):
        attrs = dict(attrs or {})
        stored = dict(attrs)
        if dims and self.version == 2:
            stored["_ARRAY_DIMENSIONS"] = list(dims)
        if dims and self.version == 3:
            options["dimension_names"] = dims
        fill = options.get("fill_value", 0)
        made = self.group.create_array(name, shape=values.shape, dtype=values.dtype, attributes=stored, **options)
        if hole is None:
            made[...] = values
        else:  # only what lies outside is written: whole chunks stay without a file
            values = values.copy()
            made[: hole.start] = values[: hole.start]
            made[hole.stop :] = values[hole.stop :]
            values[hole] = made[hole]
        assert np.array_equal(made[...], values, equal_nan=values.dtype.kind in "fc")
        # xarray keeps _FillValue there; zarr-python, without names of dims, what chunks without a file hold.
        if self.version == 2 and dims and values.dtype.kind in "iuf" and fill != 0 and "_FillValue" not in attrs:
            attrs["_FillValue"] = float(fill) if values.dtype.kind == "f" else int(fill)
        self.expected.append((name, values, dims or [""] * values.ndim, attrs))


def add_compressors2(out):
    compressors = {
        "blosc_lz4": Blosc2("lz4", 5, Blosc2.SHUFFLE),
        "blosc_zstd_bits": Blosc2("zstd", 3, Blosc2.BITSHUFFLE),
        "blosc_zlib": Blosc2("zlib", 1, Blosc2.NOSHUFFLE),
        "blosc_blosclz": Blosc2("blosclz", 9),
        "blosc_lz4hc": Blosc2("lz4hc", 9),
        "zlib": Zlib(4),
        "gzip": GZip(1),
        "zstd": Zstd2(3, checksum=True),
        "none": None,
    }
    for name, compressor in compressors.items():
        out.add(name, field("f4", (9, 14, 11)), ["time", "lat", "lon"], chunks=(2, 5, 11), compressors=compressor)
    out.add(
        "lz4_random",
        np.random.default_rng(1).integers(0, 1 << 30, (40, 300)).astype("i4"),
        chunks=(20, 300),
        compressors=LZ4(),
    )


def add_kinds2(out):
    for kind in KINDS:
        out.add("kind_" + kind, field(kind, (5, 7)), chunks=(2, 3), compressors=Zlib(1))
    for kind in (">f4", ">i2", ">c8"):
        out.add("big_" + kind[1:], field(kind, (5, 7)), chunks=(5, 3))
    out.add("fortran", field("f8", (5, 7, 4)), chunks=(2, 3, 4), order="F")


def add_differences2(out):
    out.add("shuffled", field("i4", (50, 7)), chunks=(20, 7), filters=[Shuffle(4)], compressors=Zlib(1))
    for kind in ("i2", "u1", "i8", "f4", "f8"):
        out.add(
            "delta_" + kind,
            np.rint(field(kind, (50, 7))).astype(kind),
            chunks=(20, 7),
            filters=[Delta(kind)],
            compressors=LZ4(),
        )
        out.add(
            "delta_f_" + kind,
            np.rint(field(kind, (9, 7))).astype(kind),
            chunks=(4, 3),
            filters=[Delta(kind)],
            compressors=Zlib(1),
            order="F",
        )


def add_rounded2(out):
    for kind in ("f4", "f8"):
        for made, codec in {
            "u1": FixedScaleOffset(3.5, 2, kind, "u1"),
            "i4": FixedScaleOffset(-7, 100, kind, "i4"),
            "quantize": Quantize(2, kind),
            "bitround": BitRound(9),
        }.items():
            out.add(
                f"{made}_{kind}",
                rounded(field(kind, (9, 14)), codec),
                chunks=(2, 5),
                filters=[codec],
                compressors=Zstd2(1),
            )
    out.add(
        "delta_of_scaled",
        rounded(field("f4", (40, 5)), FixedScaleOffset(0, 10, "f4", "i2")),
        chunks=(16, 5),
        filters=[FixedScaleOffset(0, 10, "f4", "i2"), Delta("i2"), Shuffle(2)],
        compressors=LZ4(9),
    )


def add_checksums2(out):
    for made, codec in {
        "crc32": CRC32(),
        "crc32_end": CRC32("end"),
        "adler32": Adler32(),
        "crc32c": CRC32C(),
        "crc32c_start": CRC32C("start"),
        "fletcher32": Fletcher32(),
    }.items():
        out.add(made, field("f4", (9, 14)), chunks=(2, 5), filters=[codec], compressors=LZ4(1))
        out.add(made + "_behind", field("f4", (9, 14)), chunks=(2, 5), filters=[Shuffle(4)], compressors=codec)


def add_holes2(out):
    out.add("hole_nan", field("f4", (12, 5)), chunks=(3, 5), fill_value=np.nan, hole=slice(3, 9))
    out.add(
        "hole",
        field("i2", (12, 5)),
        chunks=(3, 2),
        fill_value=-7,
        hole=slice(6, 9),
        attrs={"scale_factor": 0.5, "add_offset": 10.0, "units": "K", "levels": [1, 2, 3]},
    )
    out.add(
        "hole_of_xarray",
        field("i2", (12, 5)),
        ["time", "lat"],
        chunks=(3, 2),
        fill_value=-7,
        hole=slice(6, 9),
        attrs={"scale_factor": 0.5, "add_offset": 10.0},
    )


def version2(path):
    out = Writer(path, 2)
    add_compressors2(out)
    add_kinds2(out)
    add_differences2(out)
    add_rounded2(out)
    add_checksums2(out)
    add_holes2(out)
    out.add("deep/er/air", field("f4", (6, 5)), chunks=(2, 2), chunk_key_encoding={"name": "v2", "separator": "/"})
    out.add("number", np.array(2.5))
    out.add("empty", np.zeros((0, 4), "f4"), chunks=(2, 2))
    out.add("text", np.array([b"abc", b"", b"defgh"], "S5"), chunks=(2,))
    return out.expected


def add_compressors3(out):
    bytes_codecs = {
        "gzip": [GzipCodec(level=5)],
        "zstd": [ZstdCodec(level=3, checksum=True)],
        "none": [],
        "crc32c": [Crc32cCodec()],
        "blosc": [BloscCodec(cname="zstd", clevel=5, shuffle="bitshuffle")],
        "blosc_crc": [BloscCodec(cname="lz4"), Crc32cCodec()],
        "crc_zstd": [Crc32cCodec(), ZstdCodec()],
    }
    for name, codecs in bytes_codecs.items():
        out.add(name, field("f4", (9, 14, 11)), ["time", "lat", "lon"], chunks=(2, 5, 11), compressors=codecs)


def add_kinds3(out):
    for kind in KINDS:
        out.add("kind_" + kind, field(kind, (5, 7)), chunks=(2, 3))
    for kind in ("f4", "u8", "c16"):
        out.add("big_" + kind, field(kind, (5, 7)), chunks=(5, 3), serializer=BytesCodec(endian="big"))


def add_filters3(out):
    out.add("transposed", field("f8", (5, 7, 4)), chunks=(2, 3, 4), filters=[TransposeCodec(order=(2, 0, 1))])
    out.add(
        "transposed_twice",
        field("i2", (5, 7, 4)),
        chunks=(2, 3, 4),
        filters=[TransposeCodec(order=(2, 0, 1)), TransposeCodec(order=(1, 0, 2))],
    )
    out.add(
        "delta",
        field("i4", (50, 7)),
        chunks=(20, 7),
        filters=[more.Delta(dtype="<i4")],
        compressors=[more.LZ4(acceleration=3)],
    )
    out.add(
        "delta_transposed",
        field("i4", (5, 7, 4)),
        chunks=(2, 3, 4),
        filters=[TransposeCodec(order=(2, 0, 1)), more.Delta(dtype="<i4")],
    )
    scaled = {"offset": -7, "scale": 100, "dtype": "<f8", "astype": "<i4"}
    out.add(
        "scaled",
        rounded(field("f8", (9, 14)), FixedScaleOffset(**scaled)),
        chunks=(2, 5),
        filters=[more.FixedScaleOffset(**scaled)],
    )
    out.add("bitround", rounded(field("f4", (9, 14)), BitRound(9)), chunks=(2, 5), filters=[more.BitRound(keepbits=9)])
    out.add(
        "checked",
        field("f4", (9, 14)),
        chunks=(2, 5),
        compressors=[more.CRC32(), more.Shuffle(elementsize=4), more.Zlib(level=1), more.Adler32()],
    )


def add_shards3(out):
    out.add("sharded", field("f4", (17, 20, 11)), ["time", "lat", "lon"], chunks=(2, 5, 11), shards=(4, 20, 22))
    out.add("sharded_gaps", field("i4", (40, 10)), chunks=(2, 5), shards=(8, 10), fill_value=-1, hole=slice(6, 27))
    for location in ("start", "end"):
        sharding = ShardingCodec(
            chunk_shape=(2, 3),
            codecs=[TransposeCodec(order=(1, 0)), BytesCodec(), GzipCodec(), Crc32cCodec()],
            index_codecs=[BytesCodec(endian="big")] + ([Crc32cCodec()] if location == "end" else []),
            index_location=location,
        )
        out.add("sharded_" + location, field("f8", (13, 14)), chunks=(4, 6), serializer=sharding, compressors=[])


def add_chunk_keys3(out):
    out.add("dots", field("f4", (6, 5)), chunks=(2, 2), chunk_key_encoding={"name": "default", "separator": "."})
    out.add("like2", field("f4", (6, 5)), chunks=(2, 2), chunk_key_encoding={"name": "v2", "separator": "."})
    out.add("deep/er/air", field("f4", (6, 5)), chunks=(2, 2))


def add_holes3(out):
    out.add("hole_nan", field("f4", (12, 5)), chunks=(3, 5), fill_value=np.nan, hole=slice(3, 9))
    out.add("hole_complex", field("c8", (12, 5)), chunks=(3, 5), fill_value=complex(np.inf, -2), hole=slice(3, 9))
    out.add("hole_bool", field("bool", (12, 5)), chunks=(3, 5), fill_value=True, hole=slice(3, 9))
    out.add("hole_large", field("u8", (12, 5)), chunks=(3, 5), fill_value=2**64 - 3, hole=slice(3, 9))
    out.add(
        "hole",
        field("i2", (12, 5)),
        chunks=(3, 2),
        fill_value=-7,
        hole=slice(6, 9),
        attrs={"scale_factor": 0.5, "add_offset": 10.0, "_FillValue": -7, "units": "K"},
    )


def version3(path):
    out = Writer(path, 3)
    add_compressors3(out)
    add_kinds3(out)
    add_filters3(out)
    add_shards3(out)
    add_chunk_keys3(out)
    add_holes3(out)
    out.add("number", np.array(2.5))
    out.add("empty", np.zeros((0, 4), "f4"), chunks=(2, 2))
    return out.expected


def by_xarray(path, version):
    """As WeatherBench 2 and others come: packed values, coordinates, consolidated metadata."""
    values = (np.arange(6 * 8 * 5).reshape(6, 8, 5) % 97 / 4).astype("f4")
    values[2, 3] = np.nan
    data = xarray.Dataset(
        {"t2m": (("time", "lat", "lon"), values, {"units": "K"}), "z": (("lat", "lon"), values[0].astype("f8"))},
        {"time": np.arange("2001-01-01", "2001-01-07", dtype="M8[D]").astype("M8[ns]"), "lat": np.linspace(-70, 70, 8)},
    )
    packing = {"dtype": "i2", "scale_factor": 0.25, "add_offset": 1.0, "_FillValue": -99, "chunks": (2, 4, 5)}
    data.to_zarr(path, zarr_format=version, consolidated=True, encoding={"t2m": packing})
    raw = zarr.open_group(path, mode="r")
    expected = []
    for name in ("t2m", "z", "time", "lat"):
        array = raw[name]
        attrs = {
            key: value
            for key, value in array.attrs.items()
            if isinstance(value, (int, float, str)) and key not in ("_ARRAY_DIMENSIONS", "_FillValue")
        }
        fill = {"t2m": -99, "z": float("nan"), "lat": float("nan")}.get(name)
        if fill is not None:
            attrs["_FillValue"] = fill
        expected.append((name, array[...], data[name].dims, attrs))
    return expected


def decoded_by_xarray(path):
    return xarray.open_zarr(path, consolidated=True)["t2m"].values


def make(folder):
    files = {
        "two.zarr": version2(folder + "/two.zarr"),
        "three.zarr": version3(folder + "/three.zarr"),
        "xarray2.zarr": by_xarray(folder + "/xarray2.zarr", 2),
        "no-suffix": by_xarray(folder + "/no-suffix", 3),
    }
    # NaN in attributes as Python writes it, and an array by itself.
    attributes = json.load(open(folder + "/two.zarr/zlib/.zattrs"))
    attributes["missing_value"] = float("nan")
    json.dump(attributes, open(folder + "/two.zarr/zlib/.zattrs", "w"))
    assert "NaN" in open(folder + "/two.zarr/zlib/.zattrs").read()
    alone = folder + "/alone.zarr"
    os.symlink(folder + "/three.zarr/sharded", alone)
    files["alone.zarr"] = [("alone", *next(row[1:] for row in files["three.zarr"] if row[0] == "sharded"))]
    return files
