#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models of other people's packages, cut over ranks that are threads, against the same on plain tensors: each in a
process of its own. Prints a line a model, then tables by family and by cause; writes a JSON and docs/models.md. Its
status is 1 for a wrong number, a deadlock or a crash, and when fewer than 98 % of the models are right.

usage: models.py [FILTER] [--jobs N] [--limit SECONDS] [--json FILE] [--page FILE] [--all | --plain] [--resume]
[--update] [--list]     FILTER: a regular expression for family/name"""

import argparse
import collections
import datetime
import importlib
import json
import os
import re
import sys
from pathlib import Path

from page import NEVER, RIGHT_SHARE, cause_of, difference_of, gathered_by, page_of, read, updated, written

HERE = Path(__file__).resolve().parent
# Set before PyTorch is imported, and NumPy with its threads.
for name, value in {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}.items():
    os.environ[name] = value


def all_models():
    found = []
    for path in sorted((HERE / "tables").glob("*.py")):
        for model in importlib.import_module("tables." + path.stem).MODELS:
            model.family = path.stem
            found.append(model)
    return found


def line_of(result):
    words = [
        f"{result['family'] + '/' + result['name']:44}",
        f"{len(result['cases'])} cases",
        f"{difference_of(result):8.1e}",
        f"{result['seconds']:6.1f} s",
        cause_of(result),
    ]
    if gathered_by(result):
        words.append("gathers " + ", ".join(gathered_by(result)))
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


def arguments():
    parser = argparse.ArgumentParser(
        prog="./dev models", description="Models of other packages, cut over ranks, against plain tensors."
    )
    parser.add_argument("filter", nargs="?", default="", help="a regular expression for family/name")
    parser.add_argument("--jobs", type=int, default=max(1, os.cpu_count() or 1), help="models at once")
    parser.add_argument("--limit", type=float, default=900, help="seconds until a model counts as hanging")
    parser.add_argument("--json", default="models.json", help="where the results go")
    parser.add_argument("--page", help="where the page with the results of all models goes")
    parser.add_argument("--all", action="store_true", help="each cut of a row on each number of ranks")
    parser.add_argument("--plain", action="store_true", help="only on plain tensors: to try new rows")
    parser.add_argument("--resume", action="store_true", help="models that are right in the JSON are not run again")
    parser.add_argument("--update", action="store_true", help="only the rows of these models are new on the page")
    parser.add_argument("--list", action="store_true", help="only name the models")
    return parser, parser.parse_args()


def right_before(path):
    """{family/name: result} of the models that are right in a JSON of earlier."""
    if not Path(path).exists():
        return {}
    return {
        f"{result['family']}/{result['name']}": result
        for result in json.loads(Path(path).read_text(encoding="utf-8"))
        if cause_of(result) == "right"
    }


def write_page(path, results):
    import moonhalo
    import torch

    Path(path).write_text(written(page_of(results, torch.__version__, moonhalo.__version__)), encoding="utf-8")
    print(f"\nwritten: {path}")


def update_page(path, results):
    page = read(Path(path).read_text(encoding="utf-8"))
    Path(path).write_text(written(updated(page, results, datetime.date.today().isoformat())), encoding="utf-8")
    print(f"\nupdated: {path}")


def main():
    parser, words = arguments()
    models = all_models()
    names = [f"{model.family}/{model.name}" for model in models]
    chosen = [model for model, name in zip(models, names) if re.search(words.filter, name)]
    if not chosen:
        parser.error(f"no model matches\n  have  {words.filter}\n  fix   see the names with --list")
    if words.list:
        print("\n".join(f"{model.family}/{model.name}" for model in chosen))
        return 0
    # A rank that waits says so before the process is ended.
    os.environ["MOONHALO_TIMEOUT_S"] = str(words.limit / 6)
    import children
    import one_model

    one_model.set_up()
    earlier = right_before(words.json) if words.resume else {}
    results = [earlier[name] for name in names if name in earlier]
    chosen = [model for model in chosen if f"{model.family}/{model.name}" not in earlier]
    which = "all" if words.all else "plain" if words.plain else ""
    for result in children.run_models(chosen, which, words.jobs, words.limit):
        results.append(result)
        print(line_of(result), flush=True)
        results.sort(key=lambda result: (result["family"], result["name"]))
        Path(words.json).write_text(json.dumps(results, indent=1), encoding="utf-8")
    status = report(results)
    if words.page and words.update and not which:
        update_page(words.page, results)
    elif words.page and not which and len(results) == len(models):
        write_page(words.page, results)
    return status


if __name__ == "__main__":
    sys.exit(main())
