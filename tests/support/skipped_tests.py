#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints which tests of a run were skipped, whole or in part, and why: by the lines "skipped: REASON" of what they
printed. usage: skipped_tests.py REPORT (of ctest --output-junit; nothing is printed where it is missing)"""

import re
import sys
import xml.etree.ElementTree
from pathlib import Path

REASON = re.compile(r"^skipped: (.*)$", re.MULTILINE)


def reasons(report):
    """reason -> the tests that gave it; those that were skipped without one are under "no reason was given"."""
    found = {}
    for case in xml.etree.ElementTree.parse(report).getroot().iter("testcase"):
        given = REASON.findall(case.findtext("system-out") or "")
        if case.get("status") == "notrun" and not given:
            given = ["no reason was given"]
        for reason in dict.fromkeys(given):
            found.setdefault(reason, []).append(case.get("name"))
    return found


def main(report):
    found = reasons(report) if Path(report).is_file() else {}
    if found:
        print("\nSkipped, whole or in part:")
    for reason, names in sorted(found.items()):
        print(f"  {reason}\n    {', '.join(sorted(names))}")


if __name__ == "__main__":
    main(*sys.argv[1:])
