#!/usr/bin/env python3
"""X14: runs tests/scripting/*_ranksN.lua as ranks of N that do not exist: with values and without, and once more with
the data sets and machine files that the tests make. A run ends well and writes no other file, and each test passes or
has an error that names what a dry run cannot do.
usage: check_dry_runs.py PROGRAM SOURCE_FOLDER [--all | NAME...]; without more a few of them, each as one rank."""

import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

# Script, rank, and how it runs: "" computes, "fake" has no values, "inputs" has none and writes the inputs of tests.
DRAWN = [
    ("autodist_times_ranks3", 1, "inputs"),
    ("checkpoint_layouts_ranks3", 2, ""),
    ("convnext_ranks3", 1, "fake"),
    ("data_loader_ranks4", 3, "inputs"),
    ("dit_ranks4", 2, "fake"),
    ("fully_shard_ranks3", 0, "fake"),
    ("grid_sample_ranks3", 1, ""),
    ("nn_sharded_ranks3", 1, "fake"),
    ("pipeline_ranks2", 0, "fake"),
    ("pipeline_ranks3", 1, ""),
    ("plan_zoo_ranks3", 2, "fake"),
    ("torch_values_ranks3", 1, "fake"),
    ("training_tools_ranks3", 2, "fake"),
    ("unet_ranks4", 3, "fake"),
    ("vit_ranks3", 1, "fake"),
]
# What errors say of what a dry run cannot do.
EXPECTED = [
    "depends on values that are not computed",
    "because it was not computed",
    "simulated ranks cannot be measured",
    # It writes no files.
    "No such file or directory",
    "is not a checkpoint",
    "no file ",
    "does not exist",
    "checkpoint.load: the path is nil",
    # Other ranks have the arguments of this one, and zeros.
    "assert_error: no error, expected one with",
    "another error",
    "same_as_plain: blocks differ from plain tensors",
    "'fc1.weight' is not whole",
]
# What tests themselves say about values, files, and what other ranks have.
OWN_ERRORS = {
    "autodist_micro_batches": "bytes planned, ",
    "check_replicated": "is not in: ",
    "checkpoint_layouts": "element 1 is {'0.weight'",
    "data_index": "is not an HDF5 file",
    "data_loader": "attempt to index a nil value",
    "deferred": "differs",
    "detect_nan": "no '",
    "fully_shard_ranks": " moves Shard",
    "fully_shard_recompute": r"attention\.",
    "h5_files": r"cannot find space for a chunk|json\.exception",
    "hash_order": "differs from|assertion failed",
    "jit_autodist": "output 1 ",
    "nn_recurrent": "dropout between layers",
    "nn_transformer": "own draws",
    "parallelize_files": "has no files: mh.files.exists",
    "profile": r"no row|local 'message'|' in: nil",
    "rank_layouts": ": exit",
    "run_log": "assertion failed|attempt to index a nil value",
    "shared_order": "differs from",
    "torch_values": ": float16",
}


def is_expected(script, error):
    if any(text in error for text in EXPECTED):
        return True
    return any(script.startswith(name) and re.search(own, error) for name, own in OWN_ERRORS.items())


def dry_run(program, source, script, rank, how):
    """What went wrong, or ""."""
    tests = os.path.join(source, "tests/scripting")
    ranks = re.search(r"_ranks(\d+)$", script)[1]
    with tempfile.TemporaryDirectory() as folder:
        inputs = os.path.join(folder, "inputs")
        runs = os.path.join(folder, "runs")
        os.mkdir(inputs)
        os.mkdir(runs)
        for name in ("configs", "docs", "examples", "tests"):
            os.symlink(os.path.join(source, name), os.path.join(runs, name))
        command = [program, "run", os.path.join(tests, "support/dry_run_tests.lua"), "--quiet", "--backend", "fake"]
        command += ["--ranks", ranks, "--fake-rank", str(rank)] + (["--fake-tensors"] if how else [])
        command += ["--", script] + (["inputs"] if how == "inputs" else [])
        environment = dict(os.environ, TMPDIR=inputs)
        ended = subprocess.run(command, cwd=runs, env=environment, capture_output=True, text=True)
        if ended.returncode != 0 or not re.search(r"^\d+ tests$", ended.stdout, re.MULTILINE):
            return f"status {ended.returncode}\n{ended.stdout[-500:]}{ended.stderr[-2000:]}"
        found = [entry.path for entry in os.scandir(runs) if not entry.is_symlink()]
        found += [] if how == "inputs" else os.listdir(inputs)
        if found:
            return f"wrote {found}"
    failed = re.findall(r"^failed (\w+): (.*)$", ended.stdout, re.MULTILINE)
    unclear = [f"{test}: {error[:1500]}" for test, error in failed if not is_expected(script, error)]
    return "\n".join(unclear).replace("\\n", "\n  ")


def all_runs(source, names):
    runs = []
    for file in sorted(os.listdir(os.path.join(source, "tests/scripting"))):
        script, ranks = file[:-4], re.search(r"_ranks(\d+)\.lua$", file)
        if not ranks or (names and script not in names):
            continue
        last = int(ranks[1]) - 1
        runs += [(script, rank, how) for rank in sorted({0, last // 2 + 1, last}) for how in ("", "fake", "inputs")]
    return runs


def main():
    program, source, *names = sys.argv[1:]
    runs = all_runs(source, [] if names == ["--all"] else names) if names else DRAWN
    failed = 0
    with ThreadPoolExecutor(2) as pool:
        problems = pool.map(lambda run: dry_run(program, source, *run), runs)
        for (script, rank, how), problem in zip(runs, problems):
            failed += problem != ""
            print(f"{'FAILED' if problem else 'ok    '} {script}, rank {rank} {how} {problem}".rstrip(), flush=True)
    print(f"{len(runs)} dry runs, {failed} failed")
    return failed != 0 or len(runs) == 0


if __name__ == "__main__":
    sys.exit(main())
