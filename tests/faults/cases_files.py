"""Files that are missing, damaged or forbidden, and disks that are full."""

import os

from cases import Case


def text(name, content):
    return lambda work: (work / name).write_text(content)


def folder(name):
    return lambda work: (work / name).mkdir()


def cut(name, bytes_left):
    return lambda work: os.truncate(work / name, bytes_left)


def gone(name):
    return lambda work: (work / name).unlink()


def mode(name, bits):
    return lambda work: (work / name).chmod(bits)


READ_H5 = 's.ready() s.mh.scatter_tensor(s.mh.h5.open("field.h5").field, s.mesh, {s.mh.Shard(0)})'
READ_CK = 's.ready() s.version.ck("ck")'
READ_WEIGHTS = 's.ready() s.mh.safetensors.load("weights.safetensors")'
READ_PLAN = 's.ready() s.mh.plan.load("plan.json")'
READ_CONFIG = "s.ready() s.mh.config{width = 8}"
PLAN = '{"net.0": "colwise", "net.1": "rowwise"}\n'


def safetensors(header):
    return lambda work: (work / "weights.safetensors").write_bytes(len(header).to_bytes(8, "little") + header.encode())


DEEP = "[" * 50000
CONFIG, CONFIG_LUA = ("--config", "config.json"), ("--config", "config.lua")

# What made the program crash, hang or read something else.
HOSTILE = [
    Case(
        "ck_json_deep",
        READ_CK,
        watch="ck",
        before=text("ck/checkpoint.json", '{"format": 1, "entries": ' + DEEP),
        how="threads",
    ),
    Case(
        "safetensors_deep",
        READ_WEIGHTS,
        before=safetensors('{"__metadata__": ' + DEEP + "]" * 50000 + "}"),
        how="threads",
    ),
    Case(
        "safetensors_half_sizes",
        READ_WEIGHTS,
        how="threads",
        before=safetensors('{"a": {"dtype": "F32", "shape": [2.5], "data_offsets": [0, 8]}}' + " " * 8),
    ),
    Case("config_deep", READ_CONFIG, options=CONFIG, before=text("config.json", '{"width": ' + DEEP), how="threads"),
    Case(
        "config_beyond_63_bits",
        READ_CONFIG,
        options=CONFIG,
        how="threads",
        before=text("config.json", '{"width": 18446744073709551615}'),
    ),
    Case("config_endless", READ_CONFIG, options=CONFIG_LUA, before=text("config.lua", "while true do end"), limit=10),
    Case(
        "config_all_memory",
        READ_CONFIG,
        options=CONFIG_LUA,
        limit=10,
        how="threads",
        before=text("config.lua", 'local text = "x" while true do text = text .. text end'),
    ),
    Case(
        "config_changes_math",
        READ_CONFIG + " assert(math.floor(1.5) == 1)",
        options=CONFIG_LUA,
        how="threads",
        before=text("config.lua", "math.floor = function() return 42 end\nreturn {width = 2}\n"),
    ),
    Case(
        "plan_long_list",
        READ_PLAN,
        how="threads",
        before=text("plan.json", '{"parameter": {"w": ["S(0, {' + ", ".join(["128"] * 20000) + '})"]}}'),
    ),
]

READING = [
    Case("h5_missing", READ_H5),
    Case("h5_is_a_folder", READ_H5, before=folder("field.h5")),
    Case("h5_missing_dataset", 's.ready() local x = s.mh.h5.open("field.h5").feild', watch="field.h5"),
    Case("h5_no_hdf5", READ_H5, before=text("field.h5", "no HDF5\n"), how="threads"),
    Case("h5_empty", READ_H5, before=text("field.h5", ""), how="threads"),
    Case("h5_cut_short", READ_H5, watch="field.h5", before=cut("field.h5", 40000)),
    Case("h5_unreadable", READ_H5, watch="field.h5", before=mode("field.h5", 0), user="nobody"),
    Case(
        "h5_missing_on_one",
        's.ready() s.mh.h5.open(s.rank == 1 and "none.h5" or "field.h5")\ns.collective()',
        watch="field.h5",
    ),
    Case("ck_missing", READ_CK),
    Case("ck_is_a_file", READ_CK, before=text("ck", "text\n"), how="threads"),
    Case("ck_empty", READ_CK, before=folder("ck"), how="threads"),
    Case("ck_json_cut_short", READ_CK, watch="ck", before=cut("ck/checkpoint.json", 100)),
    Case("ck_json_empty", READ_CK, watch="ck", before=cut("ck/checkpoint.json", 0), how="threads"),
    Case(
        "ck_json_other",
        READ_CK,
        watch="ck",
        before=text("ck/checkpoint.json", '{"format": 1, "entries": 3}\n'),
        how="threads",
    ),
    Case("ck_tensors_missing", READ_CK, watch="ck", before=gone("ck/net.safetensors"), how="threads"),
    Case("ck_tensors_cut_short", READ_CK, watch="ck", before=cut("ck/net.safetensors", 9000)),
    Case(
        "ck_missing_entry",
        's.ready() s.mh.checkpoint.load("ck", {nett = s.mh.nn.Linear(64, 64)})',
        watch="ck",
        how="threads",
    ),
    Case("ck_unreadable", READ_CK, watch="ck", before=mode("ck", 0), user="nobody"),
    Case("safetensors_missing", READ_WEIGHTS, how="threads"),
    Case("safetensors_is_a_folder", READ_WEIGHTS, before=folder("weights.safetensors"), how="threads"),
    Case("safetensors_empty", READ_WEIGHTS, before=text("weights.safetensors", ""), how="threads"),
    Case("safetensors_cut_short", READ_WEIGHTS, watch="weights.safetensors", before=cut("weights.safetensors", 200)),
    Case(
        "safetensors_unreadable",
        READ_WEIGHTS,
        watch="weights.safetensors",
        before=mode("weights.safetensors", 0),
        user="nobody",
        how="threads",
    ),
    Case("plan_missing", READ_PLAN),
    Case("plan_cut_short", READ_PLAN, before=text("plan.json", PLAN[:30]), how="threads"),
    Case("plan_is_a_folder", READ_PLAN, before=folder("plan.json"), how="threads"),
    Case(
        "plan_unreadable",
        READ_PLAN,
        before=lambda work: (text("plan.json", PLAN)(work), mode("plan.json", 0)(work)),
        user="nobody",
        how="threads",
    ),
    Case("config_missing", READ_CONFIG, options=CONFIG, starts=False),
    Case("config_cut_short", READ_CONFIG, options=CONFIG, before=text("config.json", '{"width": ')),
    Case("config_is_a_folder", READ_CONFIG, options=CONFIG, before=folder("config.json"), how="threads", starts=False),
    Case(
        "config_lua_fails",
        READ_CONFIG,
        options=CONFIG_LUA,
        before=text("config.lua", "return {width = 1 + nil}\n"),
        how="threads",
    ),
    Case(
        "config_unreadable",
        READ_CONFIG,
        options=CONFIG,
        user="nobody",
        how="threads",
        before=lambda work: (text("config.json", "{}\n")(work), mode("config.json", 0)(work)),
    ),
    Case("script_missing", "", options=("none.lua",), starts=False),
    Case("script_is_a_folder", "", options=("scripts",), before=folder("scripts"), how="threads", starts=False),
    Case("script_cut_short", "for i = 1, 3 do", starts=False),
]

# More than the limits below leave room for.
BIG_H5 = "{rows = 4000}"
FULL = "FSIZE all 300000"

WRITING = [
    Case("h5_full", f"s.wait() s.save_h5(2, {BIG_H5})", FULL, watch="field.h5"),
    Case(
        "h5_full_then_close",
        "s.wait()\nlocal file = s.mh.h5.open('field.h5', 'w')\n"
        "assert(not pcall(file.write, file, 'field', s.field(2, 4000)))\nfile:close()",
        FULL,
        watch="field.h5",
    ),
    Case(
        "h5_full_then_dropped",
        "s.wait()\nlocal file = s.mh.h5.open('field.h5', 'w')\n"
        "assert(not pcall(file.write, file, 'field', s.field(2, 4000)))\nfile = nil collectgarbage()",
        FULL,
        watch="field.h5",
    ),
    Case(
        "h5_full_plain",
        "s.wait()\nlocal file = s.mh.h5.open('field.h5', 'w')\nfile:write('plain', s.mh.ones{400, 1000})",
        FULL,
        watch="field.h5",
        ranks=1,
        how="threads",
    ),
    Case("h5_full_disk", f"s.ready() s.save_h5(2, {BIG_H5})", small_disk=True, watch="field.h5"),
    Case("h5_read_only_folder", "s.ready() s.save_h5(2)", watch="field.h5", before=mode("", 0o555), user="nobody"),
    Case("h5_over_a_folder", "s.ready() s.save_h5(2)", before=folder("field.h5")),
    Case("h5_no_such_folder", 's.ready() s.save_h5(2, {path = "none/field.h5"})'),
    Case("ck_full", "s.wait() s.save_ck(2, {rows = 4000})", FULL, watch="ck"),
    Case("ck_full_json", 's.wait() s.save_ck(2, {notes = ("x"):rep(400000)})', FULL, watch="ck"),
    Case("ck_full_disk", 's.ready() s.save_ck(2, {notes = ("x"):rep(4000000)})', small_disk=True, watch="ck"),
    Case("ck_read_only_folder", "s.ready() s.save_ck(2)", watch="ck", before=mode("", 0o555), user="nobody"),
    Case("ck_over_a_file", "s.ready() s.save_ck(2)", before=text("ck", "text\n")),
    Case(
        "safetensors_full", "s.wait() s.save_safetensors(2, 400000) s.collective()", FULL, watch="weights.safetensors"
    ),
    Case(
        "safetensors_read_only_folder",
        "s.ready() s.save_safetensors(2) s.collective()",
        watch="weights.safetensors",
        before=mode("", 0o555),
        user="nobody",
        how="threads",
    ),
    Case(
        "log_full",
        "s.wait()\nfor i = 1, 100000 do s.mh.log{version = 2} end",
        "FSIZE all 300000",
        options=("--log", "log.jsonl"),
        watch="log.jsonl",
    ),
    Case(
        "log_half_line",
        "s.ready() s.mh.log{version = 2}",
        options=("--log", "log.jsonl"),
        watch="log.jsonl",
        before=lambda work: (work / "log.jsonl").open("a").write('{"version": 1, "half'),
        how="threads",
    ),
    Case("log_full_device", "s.ready() s.mh.log{version = 2} s.collective()", options=("--log", "/dev/full")),
    Case("log_is_a_folder", "s.ready()", options=("--log", "log.jsonl"), before=folder("log.jsonl"), starts=False),
    Case("log_no_such_folder", "s.ready()", options=("--log", "none/log.jsonl"), starts=False),
    Case(
        "log_read_only_folder",
        "s.ready()",
        options=("--log", "log.jsonl"),
        before=mode("", 0o555),
        user="nobody",
        how="threads",
        starts=False,
    ),
    Case("stdout_full_device", 's.ready() print("a result")', stdout="/dev/full", how="threads"),
    Case(
        "h5_out_of_descriptors",
        "s.wait()\nlocal held = {} for i = 1, 200 do held[i] = io.open('/dev/null') end\ns.save_h5(2)",
        "NOFILE all 100",
        watch="field.h5",
    ),
]

# Compressed chunks, which all ranks make and write: more of them than the limit leaves room for.
PACKED = (
    "s.wait()\nlocal file = s.mh.h5.open('field.h5', 'w')\n"
    "file:write('packed', s.noise(4000), {compression = 1, chunks = {17, 128}}) file:close()"
)
# A thread of each rank reads ahead.
LOADING = [
    Case("h5_packed_full", PACKED, FULL, watch="field.h5"),
    Case("h5_packed_full_on_one", PACKED, "FSIZE 1 300000", "mpi", watch="field.h5"),
    Case("loader_chunk_damaged", "local loader = s.loader(s.damage_series) s.ready() s.load(loader)"),
    Case(
        "loader_file_replaced",
        "local loader = s.loader() local batches = loader:batches() batches() s.ready()\ns.write_series('../other.nc')"
        " if s.rank == 0 then assert(os.rename('../other.nc', '../series.nc')) end\ns.load(loader)",
    ),
    Case(
        "loader_file_cut_short",
        "local loader = s.loader() local batches = loader:batches() batches() s.ready()\n"
        "if s.rank == 0 then assert(io.open('../series.nc', 'w')):close() end\ns.load(loader)",
    ),
    Case(
        "loader_file_gone",
        "local loader = s.loader() local batches = loader:batches() batches() s.ready()\n"
        "if s.rank == 0 then assert(os.remove('../series.nc')) end\ns.load(loader)",
    ),
]

CASES = HOSTILE + READING + WRITING + LOADING
