#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares forecasts of moonhalo plan with real steps: six models, two sizes, rank threads and MPI processes.

usage: bench_plan.py PROGRAM [--machine FILE] [--models unet,vit,...] [--sizes small,large] [--ranks 1,2,3,4]
                     [--mpi 2] [--steps 15] [--seconds 1200] [--check]

Run it on a quiet machine. It measures the machine first, unless FILE is there. A part of the cases: --models fno,vit
--sizes small --ranks 3,4 --mpi none (none: no ranks of that kind). `itself` says how far every other real step is apart
from the others: an error below that is noise. --check: the exit status is 1 unless the acceptance holds.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

MODELS = ["unet", "vit", "fno", "convnext", "tensor", "stored"]
SIZES = ["small", "large"]
SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "plan_models.lua")
# A container's only user is root, and more ranks than cores must yield.
MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1"}


def call(command, seconds):
    """Runs a command; returns its status (None: it took too long) and what it wrote."""
    try:
        ended = subprocess.run(
            command,
            check=False,
            env={**os.environ, **MPI},
            timeout=seconds,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return ended.returncode, ended.stdout
    except subprocess.TimeoutExpired as late:
        return None, (late.stdout or b"").decode(errors="replace")


def calibrate(options, program, machine):
    commands = [[program, "calibrate", machine, "--seconds", "30"]]
    for ranks in options.ranks:
        if ranks > 1:
            commands.append([program, "calibrate", machine, "--verbs", "--ranks", str(ranks), "--seconds", "6"])
    for ranks in options.mpi:
        commands.append(["mpirun", "-n", str(ranks), program, "calibrate", machine, "--verbs", "--seconds", "8"])
    for command in commands:
        status, text = call(command, 180)
        if status != 0:
            sys.exit(f"{' '.join(command)}: status {status}\n{text}")
        if "not quiet" in text:
            print(f"{' '.join(command[-5:])}: the machine was not quiet", flush=True)


def cases(options):
    for model in options.models:
        for size in options.sizes:
            for ranks in options.ranks:
                yield model, size, "threads", ranks
            for ranks in options.mpi:
                yield model, size, "mpi", ranks


def memory_error(check, backend):
    """How far live memory is off, as `--check` decides: of rank threads all together, the better of two peaks."""
    shares = []
    for peak in ("peak", "peak_of_step"):
        pairs = [(rank[peak]["planned"], rank[peak]["measured"]) for rank in check["ranks"]]
        if backend == "threads":
            pairs = [tuple(map(sum, zip(*pairs)))]
        shares.append(max(abs(planned - measured) / max(measured, 1) for planned, measured in pairs))
    return min(shares) if backend == "threads" else max(shares)


def run(options, program, machine, folder, case):
    """Returns the row of one case, or what failed."""
    model, size, backend, ranks = case
    result = os.path.join(folder, "plan.json")
    if os.path.exists(result):
        os.remove(result)
    command = [program, "plan", SCRIPT, "--check", "--check-steps", str(options.steps), "--machine", machine]
    command += ["--json", result] + (["--ranks", str(ranks)] if backend == "threads" else []) + ["--", model, size]
    # Operators are measured in a process of their own: in that of the real run they would leave free memory in parts,
    # and under a launcher, which has bound the processes to cores, they are not measured.
    measure = [program, "plan", SCRIPT, "--machine", machine, "--ranks", str(ranks), "--backend", backend]
    call([*measure, "--", model, size], 120)
    status, text = call((["mpirun", "-n", str(ranks)] if backend == "mpi" else []) + command, 120)
    if not os.path.exists(result):
        return None, f"status {status}: {text[-600:]}"
    with open(result, encoding="utf-8") as file:
        plan = json.load(file)["plans"][0]
    check, step = plan["check"], plan["check"]["step"]
    row = {
        "case": f"{model} {size}",
        "backend": backend,
        "ranks": ranks,
        "forecast": step["forecast"],
        "measured": step["median"],
        "low": step["low"],
        "high": step["high"],
        "itself": step["apart_from_itself"],
        "processor": step["processor"],
        "computing": plan["time"]["computing"],
        "counts": check["sends_as_planned"],
        "memory": memory_error(check, backend),
        "resident": check["resident"]["planned"] / check["resident"]["measured"] - 1,
    }
    row["error"] = row["forecast"] / row["measured"] - 1
    return row, text


def line(row):
    return (
        f"{row['case']:<15} {row['backend']:<7} {row['ranks']:>5} {1e3 * row['forecast']:>9.2f}"
        f" {1e3 * row['measured']:>9.2f} {100 * row['error']:>+7.1f} {100 * row['itself']:>6.1f}"
        f" {1e3 * row['low']:>8.2f}-{1e3 * row['high']:<8.2f}"
        f" {1e3 * row['computing']:>9.2f} {1e3 * row['processor']:>9.2f} {'yes' if row['counts'] else 'NO':>6}"
        f" {100 * row['memory']:>6.2f} {100 * row['resident']:>+8.1f}"
    )


def summary(rows, failed, left):
    errors = sorted(abs(row["error"]) for row in rows)
    if not errors:
        return False
    within = sum(error <= 0.2 for error in errors)
    above = [row for row in rows if abs(row["error"]) > 0.2]
    print(f"\n{len(rows)} cases, {len(failed)} failed, {len(left)} left out for time")
    print(
        f"within 20 %: {within} of {len(rows)} ({100 * within / len(rows):.0f} %); median error "
        f"{100 * statistics.median(errors):.1f} %; largest {100 * errors[-1]:.1f} %"
    )
    print(
        f"messages and bytes as planned: {sum(row['counts'] for row in rows)} of {len(rows)}; largest error of live "
        f"memory {100 * max(row['memory'] for row in rows):.2f} %, of resident memory "
        f"{100 * max(abs(row['resident']) for row in rows):.1f} %"
    )
    for row in above:
        print(
            f"above 20 %: {row['case']} {row['backend']} {row['ranks']}: {100 * row['error']:+.1f} %, apart from "
            f"itself {100 * row['itself']:.1f} %"
        )
    for case, why in failed:
        print(f"failed: {' '.join(map(str, case))}: {why}")
    for case in left:
        print(f"left out: {' '.join(map(str, case))}")
    return (
        not failed
        and not left
        and within >= 0.9 * len(rows)
        and statistics.median(errors) <= 0.1
        and errors[-1] <= 0.3
        and all(row["counts"] and row["memory"] <= 0.03 and abs(row["resident"]) <= 0.08 for row in rows)
    )


def some_of(known):
    """A parser of "a,b", all of which are known."""

    def parse(text):
        words = text.split(",")
        for word in words:
            if word not in known:
                raise argparse.ArgumentTypeError(f"'{word}' is none of {', '.join(known)}")
        return words

    return parse


def numbers_from(least):
    """A parser of "2,3", numbers from `least` on, or "none"."""

    def parse(text):
        words = [] if text == "none" else text.split(",")
        for word in words:
            if not (word.isdecimal() and int(word) >= least):
                raise argparse.ArgumentTypeError(f"'{word}' is no number from {least} on, nor are these none")
        return [int(word) for word in words]

    return parse


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--machine", default="")
    parser.add_argument("--models", type=some_of(MODELS), default=MODELS)
    parser.add_argument("--sizes", type=some_of(SIZES), default=SIZES)
    parser.add_argument("--ranks", type=numbers_from(1), default=[1, 2, 3, 4])
    parser.add_argument("--mpi", type=numbers_from(2), default=[2])
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=1200)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if options.steps < 1:
        parser.error("--steps: at least one real step must be timed")
    if not list(cases(options)):
        parser.error("no cases: both --ranks and --mpi are none")
    return options


def main():
    options = parse_options()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        machine = options.machine or os.path.join(folder, "machine.json")
        if not os.path.exists(machine):
            calibrate(options, options.program, machine)
        print("times in ms, errors in %; `computing` is the forecast's, `processor` what a rank's thread took\n")
        print(
            f"{'model':<15} {'ranks':<13} {'forecast':>9} {'measured':>9} {'error':>7} {'itself':>6}"
            f" {'half of steps':>17} {'computing':>9} {'processor':>9} {'counts':>6} {'memory':>6} {'resident':>8}",
            flush=True,
        )
        rows, failed, left = [], [], []
        for case in cases(options):
            if time.monotonic() - began > options.seconds:
                left.append(case)
                continue
            row, text = run(options, options.program, machine, folder, case)
            if row is None:
                failed.append((case, text))
                continue
            rows.append(row)
            print(line(row), flush=True)
        right = summary(rows, failed, left)
    sys.exit(1 if options.check and not right else 0)


if __name__ == "__main__":
    main()
