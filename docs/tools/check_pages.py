#!/usr/bin/env python3
"""Checks the pages of docs/ without Sphinx: links and paths of files exist, every page is in docs/README.md, headings
begin with one of the first level and skip none, code has a language that Sphinx colours. usage: check_pages.py
SOURCE_FOLDER"""

import re
import sys
from pathlib import Path

from pages import lines_of, listed_pages, pages_of

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/style"))
from checked import main, problems_in

LANGUAGES = {"", "bash", "c", "cmake", "cpp", "fortran", "json", "lua", "output", "python", "text"}
# Code spans that name a file: with one of these endings, or a folder with a slash behind.
PATH = re.compile(r"(?:[\w.*-]+/)*[\w*-]+\.(?:md|lua|cpp|cu|h|c|f90|py|json|toml|sh|pyi|svg|png|txt)|(?:[\w.-]+/)+")
LINK = re.compile(r"!?\[[^\]\n]*\]\(([^)\s]+)\)")
SPAN = re.compile(r"`([^`\n]+)`")
# Files that users have, or that the build makes.
NOT_IN_TREE = re.compile(r"^(?:build|run|runs|results|PREFIX|generated)/|^(?:moonhalo/|\.\.\.)")


def anchor(heading):
    """The anchor of a heading, as GitHub and MyST make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def anchors_of(path):
    lines = lines_of(path.read_text(encoding="utf-8"))
    return {anchor(line.lstrip("#")) for _, line, code, _ in lines if code is None and line.startswith("#")}


def check_link(root, path, target):
    if re.match(r"[a-z]+:", target):
        return None
    name, _, part = target.partition("#")
    to = (path.parent / name).resolve() if name else path
    if not to.exists() or not to.is_relative_to(root):
        return f"a link to {target}, which does not exist"
    if part and to.suffix == ".md" and part not in anchors_of(to):
        return f"a link to {target}, which has no such heading"
    return None


def check_span(root, path, span, names):
    """A path in a code span is one of the tree: from the root, or beside the page."""
    if not PATH.fullmatch(span) or NOT_IN_TREE.match(span):
        return None
    if "/" in span and not (root / span.split("/")[0]).exists():
        return None  # the user's
    if "*" in span:
        return None if any(root.glob(span)) or any(path.parent.glob(span)) else f"`{span}` matches no file"
    if (root / span).exists() or (path.parent / span).exists():
        return None
    if "/" not in span:  # a file of the user's, but pages are ours
        return f"`{span}` is not a page" if span.endswith(".md") and span not in names else None
    return f"`{span}` does not exist"


def check_page(root, path, names):
    text = path.read_text(encoding="utf-8")
    level, place = 0, path.relative_to(root).as_posix()
    for number, line, language, opens in lines_of(text):
        if opens and language.split(" ")[0] not in LANGUAGES:
            yield f"{place}:{number}: code in a language that is not in LANGUAGES: {language}"
        if language is not None:
            continue
        found = []
        heading = re.match(r"(#+) ", line)
        if heading:
            depth = len(heading[1])
            if depth > level + 1 or (depth == 1) != (level == 0):
                found.append("a heading that skips a level, or a second title")
            level = depth
        elif level == 0 and line.strip() and not line.startswith("<!--"):
            found.append("a page begins with its title")
            level = 1
        found += [check_link(root, path, target) for target in LINK.findall(SPAN.sub("", line))]
        found += [check_span(root, path, span, names) for span in SPAN.findall(line)]
        for problem in filter(None, found):
            yield f"{place}:{number}: {problem}"


def check(root):
    pages = pages_of(root)
    names = {path.name for path in pages}
    problems = [problem for path in pages for problem in check_page(root, path, names)]
    listed = listed_pages(root)
    for path in pages:
        name = path.relative_to(root / "docs").as_posix()
        if name != "README.md" and not name.startswith("guide/") and name not in listed:
            problems.append(f"docs/README.md:1: {name} is not in the table")
    return problems


def self_test():
    """Every kind of problem is found in a small tree."""
    files = {
        "docs/README.md": "# Pages\n\n| `a.md` | `gone.md` |\n",
        "docs/a.md": (
            "# A\n\n### Skips\n\n[b](b.md) [c](a.md#none) `engine/x.cpp` `docs/*.png`\n\n```klingon\n[no](no.md)\n```\n"
        ),
        "docs/b.md": "No title\n",
        "engine/y.cpp": "",
    }
    places = ["README.md:3", "a.md:3", "a.md:5", "a.md:5", "a.md:5", "a.md:7", "b.md:1", "README.md:1"]
    found = problems_in(files, check)
    assert found == ["docs/" + one for one in places], found


if __name__ == "__main__":
    main(check, self_test, "the pages are in order")
