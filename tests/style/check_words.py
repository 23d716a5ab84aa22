#!/usr/bin/env python3
"""Checks that pages, READMEs and new text are in plain technical English: no word of WORDS. Markdown has none. Comments
and strings of C++ and Lua have at most the numbers of words.txt, which may only fall. usage: check_words.py
SOURCE_FOLDER [--lower] [--list WORD]; --lower writes the present numbers into words.txt where they are smaller, --list
WORD prints the places of a word in C++ and Lua."""

import re
import sys
from collections import Counter
from pathlib import Path

from checked import main, problems_in

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs/tools"))
from pages import lines_of

# What is refused -> what to write. The first word of a pattern is its name in words.txt.
WORDS = {
    "told": (r"told", "reported, notified, distinguished"),
    "hear": (r"hears?|heard", "is notified of, receives"),
    "meet": (r"meets?|met(?! Office)", "connect, intercept, arrive at a barrier"),
    "lend": (r"lends?|lent", "share"),
    "borrow": (r"borrow(?:s|ed)?", "fetch; the halo"),
    "knows": (r"knows|knew", "has, stores, supports"),
    "wants": (r"wants|wanted", "needs, required, expected"),
    "alike": (r"alike", "the same on all ranks"),
    "whole number": (r"whole numbers?", "integer"),
    "texts": (r"a text|texts", "a string, a message"),
    "room": (r"rooms?", "folder, memory"),
    "house": (r"houses?", "tree"),
    "floor": (r"floors?", "layer"),
    "make-believe": (r"make-believe|pretend(?:s|ed)?|doubles? of (?:NCCL|LibTorch|CUDA)", "simulated, fake"),
    "so many": (r"so many(?! (?:that|as))|some such", "a number: n"),
    "is no": (r"(?<!there )(?:is|are) no(?! (?:longer|more|less|fewer))(?= [a-z])", "is not a; has no"),
    "part ways": (r"parts? ways|parting", "diverge"),
    "home": (r"(?:comes?|way|brought|go(?:es)?) home", "return to the owner"),
    "grow old": (r"grows? old", "become invalid"),
    "mend": (r"mend(?:s|ed)?", "correct, fix"),
    "travel": (r"travel(?:s|led|ling)?", "is sent"),
    "bear": (r"bears?|borne", "contain, have"),
    "lie": (r"lies?|lain", "be, be stored"),
    "speak": (r"speaks?|talks?", "describe, send"),
    "anew": (r"anew", "again"),
    "nobody": (r"nobody|somebody", "name the rank, the user, the program"),
}
PATTERNS = {word: re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE) for word, (pattern, _) in WORDS.items()}
ANY = re.compile("|".join(pattern.pattern for pattern in PATTERNS.values()), re.IGNORECASE)
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/*.md",
    "docs/guide/*.md",
    "*/README.md",
    "*/*/README.md",
    "*/*/*/README.md",
)
BASELINE = "tests/style/words.txt"
FOLDERS = ("engine", "ops", "io", "scripting", "tests")
CODE_SPAN = re.compile(r"`[^`]*`")
# Strings come first: a comment does not begin within one. Characters ('"') would open strings of C++.
CPP = re.compile(r"""'(?:\\.|[^'\\\n])'|"((?:\\.|[^"\\\n])*)"|//([^\n]*)|/\*(.*?)\*/""", re.DOTALL)
LUA = re.compile(r"""'((?:\\.|[^'\\\n])*)'|"((?:\\.|[^"\\\n])*)"|--\[\[(.*?)\]\]|--([^\n]*)|\[\[(.*?)\]\]""", re.DOTALL)
SYNTAX = {".h": CPP, ".cpp": CPP, ".cu": CPP, ".cuh": CPP, ".lua": LUA}


def prose_of(markdown):
    """(line number, text) of the lines outside fenced code, without `code`."""
    for number, line, language, _ in lines_of(markdown):
        if language is None:
            yield number, CODE_SPAN.sub("``", line)


def pages_of(root):
    return sorted(
        {
            path
            for pattern in PAGES
            for path in root.glob(pattern)
            if not path.relative_to(root).parts[0].startswith((".", "build"))
        }
    )


def places_of(root):
    """(word, "FILE:LINE") of the words in comments and strings of C++ and Lua."""
    for path in sorted(
        path
        for folder in FOLDERS
        for path in (root / folder).rglob("*")
        if path.suffix in SYNTAX and path.parent.name not in ("mistakes", "golden")
    ):  # whose text repeats messages of the program, or names and numbers of PyTorch
        text = path.read_text(encoding="utf-8")
        for said in SYNTAX[path.suffix].finditer(text):
            for group, part in enumerate(said.groups(), 1):
                for word, pattern in PATTERNS.items() if part and ANY.search(part) else ():
                    for match in pattern.finditer(part):
                        line = text.count("\n", 0, said.start(group) + match.start()) + 1
                        yield word, f"{path.relative_to(root).as_posix()}:{line}"


def baseline_of(root):
    rows = [
        line.rsplit(" ", 1)
        for line in (root / BASELINE).read_text(encoding="utf-8").splitlines()
        if line[:1] not in ("#", "")
    ]
    return {word: int(number) for word, number in rows}


def write_baseline(root, numbers):
    head = (
        "# How often comments and strings of C++ and Lua have a word that check_words.py refuses. The numbers may only"
        " fall:\n# python3 tests/style/check_words.py . --lower\n"
    )
    (root / BASELINE).write_text(
        head + "".join(f"{word} {number}\n" for word, number in numbers.items()), encoding="utf-8"
    )


def check(root, option=None, listed=None):
    places = list(places_of(root))
    if option == "--list":
        return [place for word, place in places if word == listed]
    problems = [
        f'{path.relative_to(root).as_posix()}:{number}: "{match[0]}"; write: {WORDS[word][1]}'
        for path in pages_of(root)
        for number, line in prose_of(path.read_text(encoding="utf-8"))
        for word, pattern in PATTERNS.items()
        for match in pattern.finditer(line)
    ]
    allowed, found = baseline_of(root), Counter(word for word, _ in places)
    if option == "--lower":
        write_baseline(root, {word: min(found[word], allowed.get(word, found[word])) for word in WORDS})
    problems += [
        f'{BASELINE}: comments and strings of C++ and Lua have "{word}" {found[word]} times, more than'
        f' {allowed.get(word, 0)} (check_words.py . --list "{word}"); write: {WORDS[word][1]}'
        for word in WORDS
        if found[word] > allowed.get(word, 0)
    ]
    return problems


def self_test():
    """Each kind of problem is found once, and nothing else."""
    files = {
        "README.md": "A rank is told.\n`alike` and\n```\nalike\n```\nThere is no list; unknown words are heard.\n",
        "docs/a.md": "metric, lentil, known, textual\nIt is no list.\n",
        "engine/base/README.md": "| a room |\n",
        "engine/a.cpp": (
            'call("told", \'"\', x); // alike\nint told = 1; /* told */ const char* url = "http://alike";\n'
        ),
        "engine/a.lua": "local told = 'alike' -- heard\n--[[ told ]]\n",
        BASELINE: "# numbers\ntold 2\nalike 3\nhear 0\n",
    }
    found = problems_in(files, check)
    places = problems_in(files, lambda root: [f"{place}: " for word, place in places_of(root) if word == "told"])
    wanted = ["README.md:1", "README.md:6", "docs/a.md:2", "engine/base/README.md:1", BASELINE, BASELINE]
    assert found == wanted, f"self-test: found {found}"
    assert places == ["engine/a.cpp:1", "engine/a.cpp:2", "engine/a.lua:2"], f"self-test: places {places}"


if __name__ == "__main__":
    main(check, self_test, "pages are in plain English; other text has no more refused words than before")
