"""The frame of the checks of this folder: a small tree in which a check must find every kind of problem, then the
sources."""

import sys
import tempfile
from pathlib import Path


def problems_in(files, check):
    """What `check` finds in a tree of these files, {name: text}: the places alone."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
        return [problem.split(": ")[0] for problem in check(root)]


def is_output(root, path):
    """Whether a program of examples/ wrote this file: runs keep a copy of their script."""
    parts = path.relative_to(root).parts
    return parts[0] == "examples" and any(part.startswith("output") for part in parts[:-1])


def main(check, self_test, fine):
    """Checks the folder that the command line names, with its other words, and says what was found."""
    self_test()
    found = check(Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve(), *sys.argv[2:])
    print("\n".join(found) if found else fine)
    sys.exit(1 if found else 0)
