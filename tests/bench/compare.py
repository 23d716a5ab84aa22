#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares two builds: `compare.py OLDER NEWER [--minutes M] [--only TEXT]`, both folders with bench_models and
bench_halo, such as build/cpu/bin. They take turns, the one that begins changes, until the time is used up: so what the
machine does otherwise meets both. An older build:

    git worktree add ../older COMMIT && (cd ../older && ./dev build bench_models bench_halo)

Prints for each time the median of the older build, that of the ratios newer / older of a turn, and their quartiles. The
noise is what two turns of the older build differ by, in the median of all times. A row is marked where more than three
quarters of its ratios are beyond that, if there were four turns; then the status is 1.
"""

import argparse
import collections
import itertools
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

# With fewer, quartiles say nothing.
FEWEST_TURNS = 4
NUMBER = r"(\d+(?:\.\d+)?)"
MODEL = re.compile(r"^(\S.*?)\s{2,}" + r"\s+".join([NUMBER] * 10) + r"\s*$")
HALO = re.compile(rf"^(\S+) +(\d+) (\S+) ranks .*unsharded +{NUMBER} ms \(processors {NUMBER}\)")
VARIANT = re.compile(rf"^ +(\S+(?: \S+)*?) +{NUMBER} ms,.*of processor time {NUMBER}")


def times_of_models(text):
    """{row: ms} of plain tensors, a mesh of one rank, and rank threads."""
    found = {}
    for match in filter(None, map(MODEL.match, text.splitlines())):
        name, *numbers = match.groups()
        for way, (wall, processor) in zip(("plain", "mesh of 1", "ranks"), zip(numbers[:6:2], numbers[1:6:2])):
            found[f"{name}, {way}: wall"] = float(wall)
            found[f"{name}, {way}: processor"] = float(processor)
    return found


def times_of_halo(text):
    found, head = {}, None
    for line in text.splitlines():
        if match := HALO.match(line):
            name, ranks, backend, wall, processor = match.groups()
            head, whole = f"halo {name}, {ranks} {backend} ranks", float(processor)
            found[f"{head}, unsharded: wall"], found[f"{head}, unsharded: processor"] = float(wall), whole
        elif match := VARIANT.match(line):
            found[f"{head}, {match[1]}: wall"] = float(match[2])
            found[f"{head}, {match[1]}: processor"] = whole / float(match[3])
    return found


def run(folder, only):
    """{row: ms} of one turn of a build."""
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    found = {}
    for name, times_of in (("bench_models", times_of_models), ("bench_halo", times_of_halo)):
        command = [folder / name, "1"] + ([only] if only and name == "bench_models" else [])
        ended = subprocess.run(command, check=False, env=environment, stdout=subprocess.PIPE, text=True)
        if ended.returncode != 0:
            sys.exit(f"compare.py: {folder / name} ended with status {ended.returncode}")
        found.update(times_of(ended.stdout))
    if not found:
        sys.exit(f"compare.py: no time was found in what the benchmarks of {folder} print")
    return found


def quartiles(values):
    return statistics.quantiles(values, n=4) if len(values) > 1 else [values[0]] * 3


def report(older, newer):
    """Lists per row of the times of all turns. Returns the number of rows that are slower."""
    changes = [abs(b / a - 1) for times in older.values() for a, b in itertools.pairwise(times)]
    noise = statistics.median(changes) if changes else 0.0
    print(f"{len(next(iter(older.values())))} turns; two turns of the older build differ by {noise:.1%}")
    print(f"{'':52} {'older ms':>9} {'ratio':>6}   quartiles")
    slower = 0
    for row, times in older.items():
        low, middle, high = quartiles([b / a for a, b in zip(times, newer[row])])
        marked = len(times) >= FEWEST_TURNS and low > 1 + noise
        slower += marked
        mark = "  slower" if marked else ""
        print(f"{row:52} {statistics.median(times):9.2f} {middle:6.3f}   {low:.3f} {high:.3f}{mark}")
    return slower


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("older", type=pathlib.Path)
    parser.add_argument("newer", type=pathlib.Path)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--only", default="", help="a part of the names of bench_models' cases")
    options = parser.parse_args()
    times = {"older": collections.defaultdict(list), "newer": collections.defaultdict(list)}
    begin, turns, longest = time.monotonic(), 0, 0.0
    while turns < 1 or time.monotonic() - begin + longest < 60 * options.minutes:
        turn_begin = time.monotonic()
        for build in ("older", "newer") if turns % 2 == 0 else ("newer", "older"):
            for row, ms in run(getattr(options, build), options.only).items():
                times[build][row].append(ms)
        turns, longest = turns + 1, max(longest, time.monotonic() - turn_begin)
    for row in sorted(times["older"].keys() ^ times["newer"].keys()):
        print(f"not compared, in one build alone: {row}")
        (times["older"] if row in times["older"] else times["newer"]).pop(row)
    if not times["older"]:
        sys.exit("compare.py: the builds have no row in common")
    return 1 if report(times["older"], times["newer"]) else 0


if __name__ == "__main__":
    sys.exit(main())
