#!/usr/bin/env python3
"""Checks that tests/FEATURES.md and the tests agree: every id that a test bears has a row, the files that a row names
bear its id, rows without files say why, and no test bears the id of a feature that is not there.  usage:
check_features.py SOURCE_FOLDER"""

import re
from pathlib import Path

from checked import main, problems_in

LIST = "tests/FEATURES.md"
GROUPS = "VPNDSXY"
# In names ids may be glued: test_V02_V05_..., V17TwoMeshDims, P05P06Styles.
ID = re.compile(rf"(?:(?<![A-Za-z0-9])|(?<=[{GROUPS}]\d\d))([{GROUPS}]\d\d)(?![0-9a-z])")
ROW = re.compile(rf"^\| ([{GROUPS}]\d\d) \|(.*)\|(.*)\|(.*)\|$")
MAX_CELL = 200
SUFFIXES = {".c", ".cpp", ".h", ".lua", ".cmake"}
EXTRA = "cmake/Moonhalo*Tests.cmake"


def borne(root):
    """id -> files of tests that bear it, relative to the repository."""
    files = [p for p in sorted((root / "tests").rglob("*")) if p.suffix in SUFFIXES and p.is_file()]
    files += sorted(root.glob(EXTRA))
    found = {}
    for path in files:
        for identifier in set(ID.findall(path.read_text(encoding="utf-8"))):
            found.setdefault(identifier, set()).add(path.relative_to(root).as_posix())
    return found


def check(root):
    problems, rows, bearers = [], {}, borne(root)
    for number, line in enumerate((root / LIST).read_text(encoding="utf-8").splitlines(), 1):
        place, match = f"{LIST}:{number}", ROW.match(line)
        if not match:
            if re.match(rf"^\| *[{GROUPS}]\d\d", line):
                problems.append(f"{place}: not of the form | id | what | tests | not yet |")
            continue
        problems += [
            f"{place}: a cell of {len(cell.strip())} letters, more than {MAX_CELL}"
            for cell in match.groups()
            if len(cell.strip()) > MAX_CELL
        ]
        identifier, what, shown, gap = match[1], match[2].strip(), re.findall(r"`([^`]+)`", match[3]), match[4].strip()
        if identifier in rows:
            problems.append(f"{place}: a second row of {identifier}")
        rows[identifier] = shown
        if not what:
            problems.append(f"{place}: {identifier} does not say what users get")
        for name in shown:
            file = name if name.startswith("cmake/") else f"tests/{name}"
            if file not in bearers.get(identifier, ()):
                problems.append(
                    f"{place}: {identifier} is shown by {file}, which does not bear the id (or is not there)"
                )
        if not shown and not gap:
            problems.append(f"{place}: {identifier} has neither a test nor a reason why not")
        if not shown and identifier in bearers:
            problems.append(
                f"{place}: {identifier} is not there yet, but {', '.join(sorted(bearers[identifier]))} bears it"
            )
    for identifier in sorted(set(bearers) - set(rows)):
        problems.append(f"{LIST}: no row of {identifier}, which {', '.join(sorted(bearers[identifier]))} bears")
    return problems


def self_test():
    """Every kind of disagreement is found."""
    files = {
        "tests/engine/test_a.cpp": "TEST(A, S01_Works) {}  // and V02\nTEST(A, P05P06Styles) {}\n",
        "tests/scripting/b.lua": "function tests.test_N01_X09_all() end -- no id: S5, AS07, S123, S08b\n",
        "cmake/MoonhaloTests.cmake": "# X15\n",
        LIST: (
            "| id | what users get | shown by | not yet |\n|---|---|---|---|\n"
            "| S01 | right | `engine/test_a.cpp` | |\n"
            "| P05 | right | `engine/test_a.cpp` | |\n"
            "| P06 | right | `engine/test_a.cpp`, `scripting/b.lua` | |\n"  # 5: b.lua does not bear it
            "| N01 | called missing | | no policies |\n"  # 6: b.lua bears it
            "| N02 | missing without a reason | | |\n"  # 7
            "| N03 | missing | | no policies |\n"
            "| X09 | | `scripting/b.lua` | |\n"  # 9: what?
            "| X15 | right | `cmake/MoonhaloTests.cmake` | from C++ only |\n"
            "| X15 | twice | `cmake/MoonhaloTests.cmake` | |\n"  # 11
            "| X16 | no such file | `engine/test_c.cpp` | |\n"  # 12
            "| X10 malformed\n"  # 13; and V02 has no row
            f"| X17 | {'x' * (MAX_CELL + 1)} | | not there |\n"
        ),  # 14
    }
    found = problems_in(files, check)
    wanted = [f"{LIST}:{line}" for line in (5, 6, 7, 9, 11, 12, 13, 14)] + [LIST]
    assert found == wanted, f"self-test: found {found}"


if __name__ == "__main__":
    main(check, self_test, "the list of features and the tests agree")
