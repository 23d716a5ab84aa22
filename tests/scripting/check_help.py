#!/usr/bin/env python3
"""`moonhalo help`, help(x) of the REPL, and annotations for editors say what the reference has.
usage: check_help.py PROGRAM REFERENCE_JSON"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path


def run(words, text="", status=0):
    done = subprocess.run([program, *words], input=text, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == status, f"{words}: status {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout if status == 0 else done.stderr


def has(text, *parts):
    for part in parts:
        assert part in text, f"no {part!r} in\n{text}"


def check_names():
    """By whole names, by last words, as scripts call an object, and by letters of another case."""
    for word in ("mh.nn.Conv2d", "nn.Conv2d", "Conv2d", "conv2D"):
        has(
            run(["help", word]),
            "mh.nn.Conv2d(in_channels, out_channels, kernel_size",
            "  returns     Module",
            "  example\n",
        )
    for word in ("x:redistribute", "Tensor:redistribute", "redistribute"):
        has(run(["help", word]), "x:redistribute(placements", "  collective  over x.mesh")
    assert "Conv2d" not in run(["help", "mh.nn.Linear"])
    has(run(["help", "DeviceMesh"]), "DeviceMesh:coordinate  ", "The number of ranks of the mesh")
    for name in ("relu", "cumsum", "conv2d", "bernoulli_"):  # the same as `ops` and the site
        assert run(["help", name]).startswith(run(["ops", name])), name
    has(run(["help", "relu"]), "aten::relu(Tensor self) -> Tensor", "    shards: ", "mh.relu(...), or x:relu(...)")
    has(run(["help"]), "help --search WORDS", "mh.nn (", "Tensor (")
    has(
        run(["help", "mh_open"]),
        "mh_status mh_open(const mh_options* options, mh_session** session);",
        "call mh_open(session, script, comm",
    )
    has(run(["help", "redistibute"], status=2), "no name 'redistibute'; did you mean 'redistribute'?")


def check_search():
    found = run(["help", "--search", "border", "Rows"]).splitlines()
    assert any(line.startswith("mh.set_halo ") for line in found), found
    assert run(["help", "--search", "redistribute"]).startswith("Tensor:redistribute "), "names come first"
    has(run(["help", "--search", "nosuchword"], status=2), "no entry has all of these words")
    has(run(["help", "--search", "einsum"]), "Operators of LibTorch, by name", "\n  einsum\n")
    has(run(["help", "--search", "fft"]), "\n  fft_rfft2\n")
    has(run(["help", "--search", "fft", "rfft2"]), "  fft_rfft2\n")


def check_commands():
    for command in ("runs", "sweep"):
        has(run(["help", command]), f"`moonhalo {command} --help` explains the command.")
    has(run(["help", "run"]), "mh.run(", "`moonhalo run --help` explains the command.")


def check_repl():
    """By name, by the function itself, of a tensor, of a module, of an object; printed once for all ranks."""
    lines = [
        'help "Conv2d"',
        "help(mh.nn.Conv2d)",
        "help(mh.rank)",
        "help(mh.ones{1}.to_local)",
        "help(mh.ones{2, 3})",
        "help(mh.nn.Linear(2, 3))",
        "help(mh.Shard(0))",
    ]
    for ranks in ("1", "2"):
        said = run(["repl", "--ranks", ranks], "\n".join(lines) + "\n")
        assert said.count("mh.nn.Conv2d(in_channels") == 2, said
        assert said.count("mh.rank() -> integer") == 1, said
        has(
            said,
            "x:to_local() -> Tensor",
            "Tensor float32 [2, 3]\n  mh.distribute_tensor",
            "mh.nn.Linear(in_features",
            "Placement:is_shard",
        )
    failed = subprocess.run(
        [program, "repl"], input="help(3)\n", capture_output=True, text=True, timeout=300, check=False
    )
    has(failed.stderr, "help: the reference has no entry of 3")


def lint(text):
    """Lines that begin with ---@ have the forms that LuaLS reads, and options come before the function that takes
    them."""
    forms = (
        r"---@meta \w+",
        r"---@class [\w.]+",
        r"---@field \w+\??( \S.*)",
        r"---@param (\w+\??|\.\.\.) \S.*",
        r"---@return \S.*",
        r"---@type \S+",
        r"---@overload fun\(.*",
        r"---@operator \w+(\(.*\))?: \w+",
    )
    wrong = [
        line
        for line in text.splitlines()
        if line.startswith("---@") and not any(re.fullmatch(form, line) for form in forms)
    ]
    assert not wrong, wrong[:5]
    classes = set(re.findall(r"---@class ([\w.]+)", text))
    assert set(re.findall(r"---@param options\? ([\w.]+)", text)) - {"table"} <= classes


def check_operators():
    """`ops --all` prints every overload, with what becomes of it on blocks."""
    text = run(["ops", "--all"])
    has(
        text,
        "aten::cumsum(Tensor self, int dim",
        "\n    shards: any cut (ops/reduction/scan.cpp)\n",
        "moonhalo::stencil(",
    )
    assert len(re.findall(r"^(?:aten|moonhalo)::\S+\(", text, re.MULTILINE)) > 3000


def check_folder(folder, text):
    """A folder gets settings, too, the same as this project has; those that are there stay."""
    scripts = folder / "scripts"
    scripts.mkdir()
    run(["info", "--annotations", str(scripts)])
    assert (scripts / ".lua_types/moonhalo.lua").read_text(encoding="utf-8") == text
    settings = scripts / ".luarc.json"
    ours = Path(__file__).resolve().parents[2] / ".luarc.json"
    assert settings.read_text(encoding="utf-8") == ours.read_text(encoding="utf-8")
    assert json.loads(settings.read_text(encoding="utf-8"))["workspace.library"] == [".lua_types"]
    settings.write_text("{}", encoding="utf-8")
    has(run(["info", "--annotations", str(scripts)]), "exists and stays", '"workspace.library": [".lua_types"]')
    assert settings.read_text(encoding="utf-8") == "{}"


def check_annotations(folder):
    path = Path(folder) / "moonhalo.lua"
    run(["info", "--annotations", str(path)])
    text = path.read_text(encoding="utf-8")
    lint(text)
    has(
        text,
        '---@field padding_mode? "zeros"|"reflect"|"replicate"|"circular"',
        "---@param options? mh.nn.Conv2d.options",
        "function mh.nn.Conv2d(in_channels, out_channels, kernel_size, options) end",
        "function Tensor:redistribute(placements, options) end",
        "function DeviceMesh:size(dim) end",
        "---@field shape integer[]",
        "---@return Tensor # shape and dtype of x",
    )
    script = Path(folder) / "parse.lua"
    script.write_text(f"assert(loadfile({str(path)!r}))\nprint('parsed')\n", encoding="utf-8")
    has(run(["run", str(script)]), "parsed")
    check_folder(Path(folder), text)
    for entry in json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))["entries"]:
        for signature in entry["signatures"]:
            name = signature["name"]
            if signature["function"] and not name.startswith(("C.", "Fortran.")):
                count = len(re.findall(rf"^function {re.escape(name)}\(", text, re.MULTILINE))
                assert count == 1, f"{name} is annotated {count} times"


program = sys.argv[1]
check_names()
check_search()
check_commands()
check_repl()
check_operators()
with tempfile.TemporaryDirectory() as own:
    check_annotations(own)
print("help and annotations say what the reference has")
