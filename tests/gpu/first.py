#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs Moonhalo's programs of a bundle on a GPU, stage by stage, in the order of what is learnt.

    first.py [--device DEVICE] [--output FOLDER] [--jobs N] [--seconds S] [quick | STAGE...]

Each check is a process with a limit of its own. Its line is written at once to OUTPUT/first.log and, as JSON, to
OUTPUT/first.jsonl; what it printed goes to OUTPUT/outputs.log. A check that fails, crashes or hangs does not keep the
others from running. Ends with status 0 if no check failed and at least one ran.

DEVICE is cuda:0, or for trials without a GPU cpu (stages programs and examples) or fake (stages engine and operators).
"""

import argparse
import importlib.util
import json
import os
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

from checks import (
    Check,
    FAILED,
    Log,
    first_error,
    judge_googletest,
    judge_losses,
    judge_words,
    last_line,
    run_process,
    run_stage,
)

HERE = Path(__file__).resolve().parent


# ---- Where LibTorch is -----------------------------------------------------------------------------------------------


def find_torch(manifest):
    """The folders of libraries of the PyTorch that this Python has; ends with a clear error where it is another than
    the bundle's."""
    spec = importlib.util.find_spec("torch")
    if spec is None:
        sys.exit(
            f"first: this Python has no PyTorch\n  have  {sys.executable}\n  fix   set PYTHON to a Python with torch"
            f" {manifest['torch']}"
        )
    torch = Path(list(spec.submodule_search_locations)[0])
    found = re.search(r"__version__ = '([^']+)'", (torch / "version.py").read_text()).group(1)
    if found != manifest["torch"]:
        sys.exit(
            f"first: the bundle was built with another PyTorch\n  have  torch {found} in {torch}, bundle of torch"
            f" {manifest['torch']}\n  fix   set PYTHON to a Python with torch {manifest['torch']}, or make the bundle"
            " again with that one"
        )
    folders = [torch / "lib"] + sorted(path for path in (torch.parent / "nvidia").glob("*/lib") if path.is_dir())
    if not list((torch.parent / "nvidia").glob("cu1*/lib/libcudart.so.*")):
        sys.exit(
            f"first: no CUDA runtime beside PyTorch\n  have  {torch.parent}/nvidia\n  fix   install the packages that"
            f" torch {found} needs"
        )
    return [str(folder) for folder in folders]


# ---- Stages ----------------------------------------------------------------------------------------------------------


def tests_of(program, pattern, environment):
    """The tests of a GoogleTest program that a filter leaves, by suite."""
    status, _, output = run_process(
        [HERE / "bin" / program, "--gtest_list_tests", f"--gtest_filter={pattern}"], 60, environment
    )
    suites = {}
    for line in output.splitlines() if status == "passed" else []:
        if re.match(r"[^ ]+\.( |$)", line):
            tests = suites.setdefault(line.split()[0].rstrip("."), [])
        elif line.startswith("  "):
            tests.append(line.split()[0])
    return suites


def skipped_tests(device):
    """Rows of the tables of devices: tests that are left out there."""
    names = ["DeviceRefusals.TestsThatAreSkippedAreThere"]  # a build with CUDA lacks tests of builds without
    for file in ("device_table.txt", "cuda_table.txt")[: 2 if device.startswith("cuda") else 1]:
        for line in (HERE / "tables" / file).read_text().splitlines():
            row = re.match(r"(skip|long) ([^:]+(?:::[^:]+)*): ", line)
            if row:
                names.append(row.group(2))
    return names


def googletest(program, run, skip, environment, more=None, apart=()):
    """A check for each suite, so that a crash ends only its own; for each test of the suites that begin as those of
    `apart`."""
    checks = []
    without = "-" + ":".join(skip) if skip else ""
    for suite, tests in tests_of(program, ":".join(run) + without, environment).items():
        for name in [f"{suite}.{test}" for test in tests] if suite.startswith(apart) else [f"{suite}.*"]:
            command = [HERE / "bin" / program, f"--gtest_filter={name}{without}"]
            checks.append(Check(f"{program} {name.removesuffix('.*')}", command, 120, judge_googletest, more))
    return checks


def stage_programs(o):
    program = HERE / "bin" / "moonhalo"
    gpu = o.device.startswith("cuda")
    conv = [program, "run", "scripts/one_conv.lua", "--device", o.device]
    checks = [
        Check("moonhalo info", [program, "info"], 20, judge_words("cuda (" if gpu else "devices")),
        Check("moonhalo env", [program, "env", "--device", o.device], 20),
        Check("moonhalo env --try, 2 ranks", [program, "env", "--try", "--device", o.device, "--ranks", "2"], 25),
        Check("one convolution, 1 rank", conv + ["--ranks", "1"], 25, judge_words("equal")),
        Check("one convolution, 2 ranks", conv + ["--ranks", "2"], 25, judge_words("equal")),
    ]
    return checks + ([Check("nvidia-smi", ["nvidia-smi"], 10)] if gpu else [])


def stage_kernels(o):
    return googletest("test_gpu", ["*"], ["*Nccl*"], o.environment)


def stage_nccl(o):
    return googletest("test_gpu", ["*Nccl*"], [], o.environment, {"NCCL_DEBUG": "WARN"})


ENGINE = "HaloExchange Autograd Rows FullyShard LevelSizes UnitReducer LocalResults".split()


def stage_engine(o):
    return googletest(
        "test_engine",
        [name + ".*" for name in ENGINE],
        ["Autograd.SecondDerivatives", "Rows.S13*", "Rows.S25*"],
        o.environment,
        {"MOONHALO_TEST_DEVICE": o.device},
    )


def stage_operators(o):
    skip = skipped_tests(o.device)
    large = ("Dims/", "SweepReduce", "SweepShape", "SweepPointwise", "SweepLayers", "DegenerateCalls")
    checks = googletest("test_ops", ["*"], skip, o.environment, {"MOONHALO_TEST_DEVICE": o.device}, large)
    # Those first, so that no long one begins at the end.
    return sorted(checks, key=lambda check: not check.name.split()[1].startswith(large))


def judge_script(left_out):
    """The tests of a Lua script; those of the table fail there, and only those."""

    def judge(status, output):
        failed = set(re.findall(r"^FAILED +(\S+)", output, re.M))
        if failed == left_out and (status == "passed" or left_out):
            return "passed", f"{len(left_out)} left out" if left_out else ""
        if failed == left_out:
            return "failed", first_error(output)
        return "failed", " ".join(
            sorted(failed - left_out) + [f"({name} passes)" for name in sorted(left_out - failed)]
        ) + ": " + first_error(output)

    return judge


def stage_scripts(o):
    table = {}
    lines = (HERE / "tables" / "device_scripts.txt").read_text().splitlines()
    if o.device.startswith("cuda"):
        of_cuda = (HERE / "tables" / "cuda_table.txt").read_text().splitlines()
        lines += [line.removeprefix("script ") for line in of_cuda if line.startswith("script ")]
    for line in lines:
        row = re.match(r"([^#. ]+)\.(\S+): ", line)
        if row:
            table.setdefault(row.group(1), set()).add(row.group(2))
    checks = []
    for script in sorted((HERE / "tests/scripting").glob("*.lua")):
        left_out, ranks = table.get(script.stem, set()), re.search(r"_ranks(\d+)$", script.stem)
        if "*" not in left_out:
            command = [
                HERE / "bin" / "moonhalo",
                "test",
                script.relative_to(HERE),
                "--ranks",
                ranks.group(1) if ranks else 1,
                "--device",
                o.device,
            ]
            checks.append(
                Check(f"lua {script.stem}", command, 60, judge_script(left_out), {"MOONHALO_TIMEOUT_S": "30"})
            )
    return checks


SWEEP_PARTS = 56


def judge_sweep(status, output):
    return status, last_line(output) if status == "passed" else first_error(output)


def stage_sweep(o):
    fuzz = HERE / "bin" / "moonhalo_fuzz"
    return [
        Check(
            f"moonhalo_fuzz {part}",
            [fuzz, "--once", "--check", "--no-shrink", "--part", f"{part}/{SWEEP_PARTS}"],
            100,
            judge_sweep,
            {"MOONHALO_TEST_DEVICE": o.device},
        )
        for part in range(1, SWEEP_PARTS + 1)
    ]


def example(o, name, ranks, device, settings, tolerance):
    run, reference = o.scratch / f"{name}_{device.replace(':', '')}_{ranks}", o.scratch / f"{name}_cpu_1.jsonl"
    log = run.with_suffix(".jsonl")
    command = [
        HERE / "bin" / "moonhalo",
        "run",
        f"examples/{name}/train.lua",
        "--ranks",
        ranks,
        "--device",
        device,
        "--quiet",
        "--log",
        log,
    ]
    for setting in settings + [f"output={run}"]:
        command += ["--set", setting]
    judge = None if device == "cpu" and ranks == 1 else judge_losses(log, reference, tolerance)
    return Check(f"{name}, {ranks} rank(s) on {device}", command, 60, judge)


EXAMPLES = {"climate": ["steps=20", "plot=false"], "sst": ["epochs=1", "plot=false"]}


def stage_references(o):
    return [example(o, name, 1, "cpu", settings + ["dtype=" + o.dtype], 0) for name, settings in EXAMPLES.items()]


def stage_examples(o):
    tolerance = 1e-4 if o.dtype == "float32" else 1e-7
    return [
        example(o, name, ranks, o.device, settings + ["dtype=" + o.dtype], tolerance)
        for name, settings in EXAMPLES.items()
        for ranks in (1, 2)
        if o.device != "cpu" or ranks != 1
    ]


def stage_attention(o):
    bench = HERE / "bin" / "bench_na"
    checks = []
    for dtype in ("bfloat16", "float32"):
        for case in range(4):
            dense = "all" if (dtype, case) == ("bfloat16", 0) else "quick"
            checks.append(
                Check(f"bench_na {dtype} {case}", [bench, 5, dense, case, "--device", "cuda", "--dtype", dtype], 25)
            )
    return checks


def stage_models(o):
    bench = HERE / "bin" / "bench_models"
    return [
        Check(f"bench_models {name}", [bench, 5, name, "--device", o.device], 40)
        for name in ("U-Net", "vision transformer")
    ]


def stage_flex(o):
    return [
        Check(
            "flex_attention of PyTorch",
            [sys.executable, "scripts/flex_attention.py"],
            100,
            environment={"LD_LIBRARY_PATH": ""},
        )
    ]


def stage_sanitizer(o):
    tool = next(
        (
            path
            for path in ("/usr/local/cuda/bin/compute-sanitizer", "/usr/local/cuda-13.0/bin/compute-sanitizer")
            if os.path.exists(path)
        ),
        "compute-sanitizer",
    )
    small = "RegionsCuda.*:RandomCuda.X02_TheBitsOfTheCpu:NeighborhoodCuda.X04_AutogradOnAStream"
    return [
        Check(
            f"compute-sanitizer {kind}",
            [tool, "--tool", kind, "--error-exitcode", "9", HERE / "bin" / "test_gpu", f"--gtest_filter={small}"],
            60,
            judge_googletest,
        )
        for kind in ("memcheck", "racecheck")
    ]


# name: (what it shows, seconds it may take, processes side by side (0: one a core), checks)
# The limits of all but the sanitizer add up to less than TOTAL; it runs where the others were quicker.
STAGES = {
    "programs": ("the programs find the device; one convolution", 30, 1, stage_programs),
    "kernels": ("CUDA kernels against the CPU", 40, 0, stage_kernels),
    "nccl": ("NCCL with one rank", 20, 1, stage_nccl),
    "engine": ("the engine's device tests, ranks that share the GPU", 20, 0, stage_engine),
    "references": ("losses of the examples on the CPU", 20, 0, stage_references),
    "examples": ("losses of the examples on the device", 25, 0, stage_examples),
    "operators": ("the operators' device tests, ranks that share the GPU", 100, 0, stage_operators),
    "scripts": ("the tests in Lua, ranks that share the GPU", 60, 0, stage_scripts),
    "sweep": ("every operator of ATen on drawn blocks", 150, 0, stage_sweep),
    "attention": ("times of neighbourhood attention", 30, 1, stage_attention),
    "models": ("times of training steps", 35, 1, stage_models),
    "flex": ("times of PyTorch's flex_attention", 80, 1, stage_flex),
    "sanitizer": ("compute-sanitizer on small kernels", 90, 1, stage_sanitizer),
}
QUICK = ["programs", "kernels", "nccl", "engine"]
TOTAL = 420
ON_REQUEST = ["sweep", "flex"]  # only where it is named
NEEDED = {"sanitizer": 90}  # seconds that have to be left
MANIFEST = json.loads((HERE / "manifest.json").read_text()) if (HERE / "manifest.json").exists() else None


def summary(log, device, seconds):
    counts = {}
    for record in log.records:
        counts.setdefault(record["stage"], {}).setdefault(record["status"], 0)
        counts[record["stage"]][record["status"]] += 1
    log.say(f"---- {device}, {seconds:.0f} s")
    for stage, statuses in counts.items():
        log.say(f"{stage:12} " + ", ".join(f"{count} {status}" for status, count in sorted(statuses.items())))
    return any(record["status"] in FAILED for record in log.records)


def main():
    lines = [f"  {name:12} {what} ({limit} s)" for name, (what, limit, _, _) in STAGES.items()]
    parser = argparse.ArgumentParser(
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=__doc__.split("\n")[0],
        epilog="stages:\n"
        + "\n".join(lines)
        + f"\n  {'quick':12} "
        + ", ".join(QUICK)
        + f"\nwithout a stage: all but {', '.join(ON_REQUEST)}, in this order",
    )
    parser.add_argument("stages", nargs="*", metavar="STAGE")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--output", type=Path, default=Path("moonhalo-gpu-results"))
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) - 2))
    parser.add_argument("--seconds", type=int, default=TOTAL, help="that all stages may take together (%(default)s)")
    parser.add_argument("--dtype", default="float32", help="of the examples")
    o = parser.parse_args()
    chosen = QUICK if o.stages == ["quick"] else o.stages or [name for name in STAGES if name not in ON_REQUEST]
    unknown = [name for name in chosen if name not in STAGES]
    if unknown:
        parser.error(f"no stage {unknown[0]!r}; there are quick, {', '.join(STAGES)}")
    if MANIFEST is None:
        sys.exit(
            "first: this is not a bundle\n  have  no manifest.json beside first.py\n  fix   make one with ./dev gpu"
            " bundle, and unpack it"
        )
    o.output = o.output.resolve()
    o.output.mkdir(parents=True, exist_ok=True)
    # TF32 rounds float32 products to 10 bits; the comparisons are without it. The times of the models are, too.
    o.environment = {
        "LD_LIBRARY_PATH": ":".join(find_torch(MANIFEST)),
        "NVIDIA_TF32_OVERRIDE": "0",
        "OMP_NUM_THREADS": "1",
        "MOONHALO_DEVICE_TABLES": str(HERE / "tables"),
        "TORCH_SHOW_CPP_STACKTRACES": "0",
    }
    log = Log(o.output)
    begin = time.monotonic()
    o.scratch = Path(tempfile.mkdtemp())
    log.say(
        f"bundle of {MANIFEST['commit']} ({MANIFEST['date']}), torch {MANIFEST['torch']}; device {o.device}; stages"
        f" {' '.join(chosen)}"
    )
    for name in chosen:
        what, limit, jobs, checks_of = STAGES[name]
        left = o.seconds - (time.monotonic() - begin)
        log.say(f"---- {name}: {what}")
        if left < NEEDED.get(name, 1):
            log.record(name, "(all)", "left out", 0, f"{max(0, left):.0f} of {o.seconds} s are left (--seconds)", "")
            continue
        checks = checks_of(o)
        if not checks:
            log.record(name, "(all)", "failed", 0, "its program lists no tests", "")
        run_stage(name, checks, min(limit, left), jobs or o.jobs, log, o.environment)
    shutil.rmtree(o.scratch)
    failed = summary(log, o.device, time.monotonic() - begin)
    sys.exit(1 if failed or not any(record["status"] == "passed" for record in log.records) else 0)


if __name__ == "__main__":
    main()
