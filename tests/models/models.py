#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models of other people's packages, cut over 2 and 3 rank threads, against the same on plain tensors: each in a
process of its own. Prints a line a model, then tables by family and by cause; writes a JSON. Its status is 1 for a
wrong number, a deadlock or a crash, and when fewer than 98 % of the models are right.

usage: models.py [FILTER] [--jobs N] [--limit SECONDS] [--json FILE] [--plain] [--list]     FILTER: a regular expression
for family/name"""

import argparse
import collections
import concurrent.futures
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
RIGHT_SHARE = 0.98
NEVER = ("wrong numbers", "deadlock", "crash")


def all_models():
    found = []
    for path in sorted((HERE / "tables").glob("*.py")):
        for model in importlib.import_module("tables." + path.stem).MODELS:
            model.family = path.stem
            found.append(model)
    return found


def output_of(process, limit):
    """What it wrote, and whether it was ended for its time."""
    try:
        return process.communicate(timeout=limit)[0], False
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # faulthandler prints where each thread stands
        try:
            return process.communicate(timeout=20)[0], True
        except subprocess.TimeoutExpired:
            process.kill()
            return process.communicate()[0], True


def run(model, folder, limit, plain):
    path, begin = Path(folder) / f"{model.family}.{model.name}.json", time.monotonic()
    # A rank that waits tells of it before the process is ended.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "MOONHALO_TIMEOUT_S": str(limit / 6)}
    process = subprocess.Popen(
        [
            sys.executable,
            "-X",
            "faulthandler",
            HERE / "one_model.py",
            model.family,
            model.name,
            path,
            "plain" if plain else "",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment,
    )
    said, late = output_of(process, limit)
    result = json.loads(path.read_text()) if path.exists() else {"cases": []}
    result.update(family=model.family, name=model.name, seconds=round(time.monotonic() - begin, 1))
    result["gathered"] = sorted(set(re.findall(r"(\S+): no (?:sharding )?rule for these placements", said)))
    if late or process.returncode:
        ended = "deadlock" if late else "crash"
        result["cases"].append({**result.get("running", {}), "cause": ended, "message": said[-6000:]})
    return result


def cause_of(result):
    """The worst of all cases."""
    if "plain" in result:
        return "not run: " + result["plain"].strip().split("\n")[-1][:150]
    causes = [case["cause"] for case in result["cases"]]
    return next(
        (cause for cause in NEVER if cause in causes), next((cause for cause in causes if cause != "right"), "right")
    )


def line_of(result):
    farthest = max(
        (found["distance"] for case in result["cases"] for found in case.get("worst", {}).values()), default=0.0
    )
    words = [
        f"{result['family'] + '/' + result['name']:44}",
        f"{len(result['cases'])} cases",
        f"{farthest:8.1e}",
        f"{result['seconds']:6.1f} s",
        cause_of(result),
    ]
    if result["gathered"]:
        words.append("gathers " + ", ".join(result["gathered"]))
    return "  ".join(words)


def table(title, rows):
    print(f"\n{title}")
    widths = [max(len(str(row[k])) for row in rows) for k in range(len(rows[0]))]
    for row in rows:
        print("  ".join(str(word).ljust(width) for word, width in zip(row, widths)).rstrip())


def report(results):
    """The tables; the exit status."""
    families, causes = collections.defaultdict(list), collections.defaultdict(list)
    for result in results:
        families[result["family"]].append(cause_of(result))
        causes[cause_of(result)].append(f"{result['family']}/{result['name']}")
    table(
        "By family",
        [("family", "models", "right")]
        + [(name, len(ends), ends.count("right")) for name, ends in sorted(families.items())],
    )
    table(
        "By cause",
        [("models", "cause", "which")]
        + [
            (len(names), cause, "" if cause == "right" else " ".join(names))
            for cause, names in sorted(causes.items(), key=lambda one: -len(one[1]))
        ],
    )
    right = len(causes.get("right", []))
    print(
        f"\n{right} of {len(results)} models right ({100 * right / len(results):.1f} %), "
        f"{sum(len(result['cases']) for result in results)} cases"
    )
    return 0 if right >= RIGHT_SHARE * len(results) and not any(cause in causes for cause in NEVER) else 1


def main():
    parser = argparse.ArgumentParser(
        prog="./dev models", description="Models of other packages, cut over rank threads, against plain tensors."
    )
    parser.add_argument("filter", nargs="?", default="", help="a regular expression for family/name")
    parser.add_argument("--jobs", type=int, default=max(1, os.cpu_count() or 1), help="models at once")
    parser.add_argument("--limit", type=float, default=900, help="seconds until a model counts as hanging")
    parser.add_argument("--json", default="models.json", help="where the results go")
    parser.add_argument("--plain", action="store_true", help="only on plain tensors: to try new rows")
    parser.add_argument("--list", action="store_true", help="only name the models")
    words = parser.parse_args()
    chosen = [model for model in all_models() if re.search(words.filter, f"{model.family}/{model.name}")]
    if not chosen:
        parser.error(f"no model matches\n  have  {words.filter}\n  fix   see the names with --list")
    if words.list:
        print("\n".join(f"{model.family}/{model.name}" for model in chosen))
        return 0
    results = []
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(words.jobs) as pool:
        for done in concurrent.futures.as_completed(
            [pool.submit(run, model, folder, words.limit, words.plain) for model in chosen]
        ):
            results.append(done.result())
            print(line_of(done.result()), flush=True)
            results.sort(key=lambda result: (result["family"], result["name"]))
            Path(words.json).write_text(json.dumps(results, indent=1), encoding="utf-8")
    return report(results)


if __name__ == "__main__":
    sys.exit(main())
