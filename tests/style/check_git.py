#!/usr/bin/env python3
"""Checks what git holds. The subject of a commit has at most 72 letters, no semicolon, no full stop, and begins with a
verb in the imperative. The root has the files of ROOT alone: outputs of scripts are not committed. usage: check_git.py
SOURCE_FOLDER checks the commits after FIRST and the root; check_git.py --message FILE the message that git is about to
commit (.githooks/commit-msg)."""

import re
import subprocess
import sys
from pathlib import Path

# The last commit before this check.
FIRST = "b5174c0"
LONGEST = 72
# Git writes these itself.
GIT_WRITES = re.compile(r"(?:Merge|Revert|fixup!|squash!) ")
# Verbs that look like participles or the third person.
IMPERATIVE = {
    "Embed",
    "Feed",
    "Need",
    "Seed",
    "Speed",
    "Bring",
    "Ring",
    "String",
    "Address",
    "Bypass",
    "Compress",
    "Cross",
    "Discuss",
    "Express",
    "Focus",
    "Guess",
    "Pass",
    "Press",
    "Process",
    "Suppress",
}
NO_VERB = re.compile(r"[A-Z]\w*(?:ed|ing|s)$")
NOUNS = {
    "A",
    "An",
    "The",
    "One",
    "Two",
    "Three",
    "No",
    "New",
    "More",
    "Some",
    "All",
    "Every",
    "Each",
    "What",
    "Whether",
    "Where",
    "Who",
}
ROOT = {
    ".clang-format",
    ".clang-tidy",
    ".git-blame-ignore-revs",
    ".gitattributes",
    ".gitignore",
    "ruff.toml",
    ".codespellrc",
    ".luarc.json",
    "CHANGELOG.md",
    "CMakeLists.txt",
    "CMakePresets.json",
    "CONTRIBUTING.md",
    "LICENSE",
    "README.md",
    "dev",
    "pyproject.toml",
}


def git(root, *words):
    return subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True)


def problems_of(subject):
    """What is wrong with a subject, in words."""
    if GIT_WRITES.match(subject):
        return []
    first = subject.split(" ")[0]
    problems = []
    if len(subject) > LONGEST:
        problems.append(f"{len(subject)} letters, more than {LONGEST}")
    if ";" in subject:
        problems.append("a semicolon: one commit has one topic")
    if subject.endswith("."):
        problems.append("a full stop at the end")
    if (
        not re.fullmatch(r"[A-Z][A-Za-z-]*", first)
        or first in NOUNS
        or (NO_VERB.match(first) and first not in IMPERATIVE)
    ):
        problems.append(f'"{first}" is no verb in the imperative, such as Add, Fix, Refuse')
    return problems


def subjects_of(root):
    """(commit, subject) of the commits after FIRST; none where the history is not here (an archive, a shallow
    clone)."""
    if git(root, "merge-base", "--is-ancestor", FIRST, "HEAD").returncode != 0:
        return None
    lines = git(root, "log", "--format=%h %s", f"{FIRST}..HEAD").stdout.splitlines()
    return [tuple(line.split(" ", 1)) for line in lines]


def self_test():
    good = ["Add a test", "Pass strides", "Embed the modules", 'Revert "A: b; c."', "Re-read the file"]
    bad = ["Added a test", "Adds a test", "Tests: more", "one of them", "Add a; and b", "Add a.", "The halo", "A" * 73]
    assert not [subject for subject in good if problems_of(subject)], [problems_of(subject) for subject in good]
    assert not [subject for subject in bad if not problems_of(subject)], "a bad subject passes"


def check_message(file):
    lines = [line for line in Path(file).read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    return [f'this commit: "{lines[0]}": {problem}' for problem in problems_of(lines[0])] if lines else []


def check_repository(root):
    commits = subjects_of(root)
    if commits is None:
        print("the commits are not here; their subjects were not checked")
    found = [
        f'{commit}: "{subject}": {problem}' for commit, subject in commits or [] for problem in problems_of(subject)
    ]
    stray = {name for name in git(root, "ls-files").stdout.splitlines() if "/" not in name} - ROOT
    return found + [f"{name}: a file in the root that check_git.py does not know" for name in sorted(stray)]


def main(words):
    self_test()
    found = check_message(words[1]) if words[0] == "--message" else check_repository(Path(words[0]).resolve())
    print("\n".join(found) if found else "subjects and the root are in order")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
