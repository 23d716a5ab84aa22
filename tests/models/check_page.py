#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/models.md has the form that ./dev models writes, and a change by hand is found. usage: check_page.py
SOURCE_FOLDER"""

import sys
from pathlib import Path

import page

WORST = {"distance": 3.2e-13, "name": "loss"}
FINISHED = {"cause": "right", "bytes": 12345, "gathered": [], "worst": {"loss": WORST}}


def result(name, **rest):
    return {"family": "timm", "name": name, "cases": [FINISHED] * 3, **rest}


def check(what, holds):
    if not holds:
        sys.exit(f"check_page.py: {what}")


def check_writer():
    """On results of few models, one of each kind."""
    refused = [{**FINISHED, "cause": "refused: add: no rule | at all"}, FINISHED, FINISHED]
    results = [
        result("resnet"),
        result("vit", cases=[{**FINISHED, "gathered": ["aten::a", "aten::b"]}] * 3),
        result("eval", cases=[{**FINISHED, "worst": {"outputs": WORST}}] * 3),
        result("odd", cases=refused),
        result("broken", cases=[], plain="Traceback\nValueError: no such argument"),
    ]
    made = page.page_of(results, "2.11.0", "0.1.0")
    text = page.written(made)
    check("a page is not read as it was written", page.read(text) == made)
    row = "| vit | timm 1.0.31 | right | 3e-13 | 12.3 kB, 12.3 kB, 12.3 kB | `aten::a`, `aten::b` |"
    check(
        f"no row\n  {row}\nin\n{text}", row.replace("1.0.31", page.versions_of_packages()["timm"]) in text.split("\n")
    )
    check(f"no mark of a forward run in\n{text}", "\n| eval (forward alone) | timm" in text)
    check(f"no counts in\n{text}", "**3 of 5 models of 1 packages are right (60.0 %).**" in text)
    check(f"no causes in\n{text}", "broken: not run: ValueError: no such argument." in text)
    few = page.faults_of(page.written(page.page_of([result("resnet")], "2.11.0", "0.1.0")), 1, 1)
    check(f"a right page has faults: {few}", few == [])
    check_changes()


def check_update():
    """Rows of a later run."""
    refused = [{**FINISHED, "cause": "refused: add"}, FINISHED, FINISHED]
    first = page.page_of([result("resnet"), result("vit", cases=refused)], "2.11.0", "0.1.0")
    later = page.updated(page.read(page.written(first)), [result("vit")], "2030-01-02")
    text = page.written(later)
    check(f"the page does not say which run has its rows:\n{text}", ", and 1 of its rows on 2030-01-02, with" in text)
    check("the other row changed", later.rows[0] == first.rows[0] and later.rows[1].result == "right")
    check("an updated page is not read as it was written", page.read(text) == later and not page.faults_of(text, 1, 1))
    text = page.written(page.updated(later, [result("vit")], "2030-01-02"))
    check(f"a day twice:\n{text}", text.replace("\n", " ").count(" of its rows on") == 1)
    text = page.written(page.updated(page.read(text), [result("resnet")], "2030-01-03"))
    check(f"both days are named:\n{text}", text.replace("\n", " ").count(" of its rows on") == 2)
    check("a page of two days is not read as it was written", page.written(page.read(text)) == text)
    try:
        page.updated(first, [result("other")], "2030-01-02")
        check("a model that is not on the page", False)
    except ValueError as error:
        check(str(error), "other" in str(error))


def check_changes():
    """Changes of a right page by hand, and pages that may not be."""
    results = [result("resnet"), result("vit")]
    text = page.written(page.page_of(results, "2.11.0", "0.1.0"))
    for old, new in (
        ("| 3e-13 |", "| small |"),
        ("**2 of 2", "**3 of 3"),
        ("in float64", "in float32"),
        ("| resnet |", "| resnet  |"),
        ("| vit | timm", "| vit | timm9"),
        ("wrote this page on", "wrote this in"),
        (", 12.3 kB |", " |"),
        ("| none |\n| vit", "| none |\n\n| vit"),
    ):
        check(f"the text has no {old}", old in text)
        check(f"{old} may become {new}", page.faults_of(text.replace(old, new, 1), 2, 1) != [])
    check("two models are enough for 150", page.faults_of(text) != [])
    for cause in page.NEVER:
        bad = [result(f"net{k}") for k in range(99)] + [result("bad", cases=[{**FINISHED, "cause": cause}] * 3)]
        faults = page.faults_of(page.written(page.page_of(bad, "2.11.0", "0.1.0")), 1, 1)
        check(f"{cause}: {faults}", any("bad" in fault for fault in faults))


def check_tree(root):
    """The page of this tree, and README.md, which has its count."""
    text = (root / "docs/models.md").read_text(encoding="utf-8")
    faults = page.faults_of(text)
    check("docs/models.md:\n" + "\n".join(faults) + "\n  fix   ./dev models writes it", not faults)
    rows = page.read(text).rows
    count = f"{sum(row.result == 'right' for row in rows)} of {len(rows)} models of"
    check(f"README.md does not say: {count}", count in (root / "README.md").read_text(encoding="utf-8"))


check_writer()
check_update()
check_tree(Path(sys.argv[1]))
