#!/usr/bin/env python3
"""Gathers the entries of the reference: comments at the C++ bindings and in the Lua files; and those of the C header
and the Fortran module. usage: reference.py SOURCE_FOLDER [--json FILE] [--cpp FILE] [--check] --json writes all entries
for the site and for tests; --cpp writes the C++ source that holds the texts of `moonhalo help` and the annotations for
editors; --check prints what is wrong with entries, and ends with status 1 if there is anything. docs/tools/README.md
describes the form of an entry."""

import argparse
import json
import re
import sys
from pathlib import Path

import reference_c
import reference_cpp
import reference_texts

# How examples and signatures call an object -> its class.
OBJECTS = {
    "x": "Tensor",
    "mesh": "DeviceMesh",
    "placement": "Placement",
    "net": "Module",
    "list": "ModuleList",
    "dict": "ModuleDict",
    "opt": "Optimizer",
    "group": "ParamGroup",
    "scheduler": "Scheduler",
    "ema": "EMA",
    "run": "Run",
    "generator": "Generator",
    "plan": "ParallelPlan",
    "pipe": "Pipeline",
    "file": "File",
    "dataset": "Dataset",
    "selection": "Selection",
    "data": "Collection",
    "windows": "Windows",
    "loader": "Loader",
    "sampler": "Sampler",
    "statistics": "Statistics",
    "canvas": "Canvas",
    "pending": "PendingTensor",
    "metric": "Metric",
    "profiler": "Profiler",
    "balance": "Balance",
    "distribution": "Distribution",
}
FILES = (("scripting", "*.cpp", "///"), ("scripting", "*.lua", "---"))
NAME = re.compile(r"(?:(?:mh|" + "|".join(OBJECTS) + r")[.:][A-Za-z_][\w.]*(?::\w+)?)(?=[({ ]|$)")
VALUE = " --> "


class Entry:
    """One comment: its names with their signatures, and what it says about them."""

    def __init__(self, file, line, text):
        self.file, self.line, self.text = file, line, text
        self.signatures, self.problems = [], []
        self.description, self.example = "", []
        self.arguments, self.errors = {}, []
        self.returns = self.collective = None
        self.parse()

    def complain(self, message):
        self.problems.append(
            f"{self.file}:{self.line}: {self.signatures[0]['name'] if self.signatures else 'entry'}: {message}"
        )

    def parse(self):
        body = list(self.text)
        while body and (lines := signature_lines(body)):
            self.signatures.append(parse_signature(" ".join(line.strip() for line in body[:lines])))
            del body[:lines]
        names = {one for signature in self.signatures for one in argument_names(signature)}
        targets, description = [], []
        for at, line in enumerate(body):
            stripped = line.strip()
            if line.startswith("    ") or not stripped:
                for one in targets if stripped else ():
                    one["text"] = (one["text"] + " " + stripped).strip()
                if stripped and not targets:
                    self.complain(f"an indented line before the first argument: {stripped!r}")
                continue
            if not line.startswith("  "):
                self.complain(f"a line without two spaces in front: {stripped!r}")
                continue
            word, *rest = re.split(r"  +", stripped)
            if word == "example":
                self.example = [one[4:] if one.startswith("    ") else one for one in body[at + 1 :]]
                if any(one.strip() and not one.startswith("    ") for one in body[at + 1 :]):
                    self.complain("the example is the last part, its lines begin with four spaces")
                break
            targets = self.add(word, rest, names)
            if not targets:
                description.append(stripped)
        self.description = " ".join(description)

    def add(self, word, rest, names):
        """The parts of the entry that a line begins: arguments, returns, collective, an error. none for a line of the
        description."""
        if not rest:
            return []
        if word == "returns":
            self.returns = {"type": rest[0], "text": " ".join(rest[1:])}
            return [self.returns]
        if word == "collective":
            self.collective = {"text": " ".join(rest)}
            return [self.collective]
        if word == "errors":
            self.errors.append({"text": " ".join(rest)})
            return [self.errors[-1]]
        several = word.split(", ")
        if set(several) <= names:
            for one in several:
                self.arguments[one] = {"type": rest[0], "text": " ".join(rest[1:])}
            return [self.arguments[one] for one in several]
        if re.fullmatch(r"[\w.]+", word):
            self.complain(f"'{word}' is not an argument of the signature")
        return []

    def check(self):
        """Adds what a whole entry lacks."""
        is_function = any(signature["function"] for signature in self.signatures)
        if not re.search(r"[.!?)]$", self.description):
            self.complain("no sentence that says what it is")
        if is_function and self.returns is None:
            self.complain("'returns' is missing (nothing: \"returns  nothing\")")
        if is_function and self.collective is None:
            self.complain("'collective' is missing (\"collective  no\" where ranks may call it alone)")
        if not any(VALUE in line for line in self.example):
            self.complain("no example with a value behind '-->'")
        for signature in self.signatures:
            for name in argument_names(signature):
                if name not in self.arguments:
                    self.complain(f"the argument '{name}' has no line with its type")

    def as_json(self):
        return {
            "names": [signature["name"] for signature in self.signatures],
            "signatures": self.signatures,
            "description": self.description,
            "arguments": self.arguments,
            "returns": self.returns,
            "whole": not self.problems,
            "collective": self.collective and self.collective["text"],
            "errors": [error["text"] for error in self.errors],
            "example": self.example,
            "file": self.file,
            "line": self.line,
        }


def signature_lines(block):
    """How many lines the signature at the start of a comment has; 0 if there is none. Its further lines begin with four
    spaces."""
    if not NAME.match(block[0]):
        return 0
    text = block[0]
    for count, following in enumerate([*block[1:], ""], 1):
        if " -> " in text and all(text.count(one) == text.count(other) for one, other in ("()", "{}")):
            return count
        if not following.startswith("    "):
            return 0
        text += " " + following.strip()
    return 0


def split_outside(text):
    """Parts of `text` between commas that stand outside of brackets and quotes."""
    parts, depth, quoted = [""], 0, False
    for letter in text:
        quoted ^= letter == '"'
        if not quoted:
            depth += (letter in "({") - (letter in ")}")
        if letter == "," and depth == 0 and not quoted:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def parse_argument(text):
    name, _, default = text.partition(" = ")
    return {"name": name.strip(), "default": default.strip() or None}


def parse_signature(text):
    """{"name": "Tensor:redistribute", "text", "function", "positional": [{name, default}], "options": [...],
    "result"}"""
    name = NAME.match(text)[0]
    head, _, result = text.rpartition(" -> ")
    rest = head[len(name) :].strip()
    owner, separator, last = re.match(r"(.*?)([.:]?)([^.:]*)$", name).groups()
    if owner in OBJECTS or owner == "mh.nn.Module":
        name = OBJECTS.get(owner, "Module") + separator + last
    positional, options = [], []
    inner = rest[1:-1] if rest.startswith("(") else rest
    for part in split_outside(inner):
        if part.startswith("{"):
            options += [parse_argument(one) for one in split_outside(part[1:-1])]
        else:
            positional.append(parse_argument(part))
    return {
        "name": name,
        "text": text,
        "function": bool(rest),
        "positional": positional,
        "options": options,
        "result": result.strip(),
    }


def argument_names(signature):
    return [one["name"] for one in signature["positional"] + signature["options"] if one["name"] != "..."]


def entry_blocks(text, mark):
    """(number of the first line, lines without the mark) of every comment that begins with a signature."""
    block, start = [], 0
    for number, line in enumerate(text.splitlines() + [""], 1):
        stripped = line.strip()
        if stripped == mark or stripped.startswith(mark + " "):
            content = stripped[len(mark) + 1 :]
            if not block:
                start = number
            block.append(content.rstrip())
            continue
        if block and signature_lines(block):
            yield start, block
        block = []


def entry_line_count(text, mark):
    return sum(len(block) for _, block in entry_blocks(text, mark))


def read_entries(root):
    entries = []
    for folder, pattern, mark in FILES:
        for path in sorted((root / folder).rglob(pattern)):
            name = path.relative_to(root).as_posix()
            entries += [
                Entry(name, line, block) for line, block in entry_blocks(path.read_text(encoding="utf-8"), mark)
            ]
    if all((root / name).exists() for name in reference_c.C_HEADERS):
        entries += reference_c.read_c(root) + reference_c.read_fortran(root)
    return entries


def check_entries(entries):
    """What is wrong with entries."""
    problems, places = [], {}
    for entry in entries:
        problems += entry.problems
        for signature in entry.signatures:
            if signature["name"] in places:
                problems.append(
                    f"{entry.file}:{entry.line}: {signature['name']} has an entry at {places[signature['name']]}"
                    " already"
                )
            places[signature["name"]] = f"{entry.file}:{entry.line}"
    return problems


def write_if_new(path, text):
    path = Path(path)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("source", type=Path)
    parser.add_argument("--json")
    parser.add_argument("--cpp")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    root = options.source.resolve()
    entries = read_entries(root)
    for entry in entries:
        entry.check()
    if options.json:
        write_if_new(options.json, json.dumps({"entries": [entry.as_json() for entry in entries]}, indent=1) + "\n")
    if options.cpp:
        write_if_new(options.cpp, reference_texts.cpp_source(entries))
    if options.check:
        reference_cpp.self_test()
        count, problems = reference_cpp.check_cpp(root)
        problems = check_entries(entries) + problems
        print("\n".join(problems) if problems else f"{len(entries) + count} entries are whole")
        sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
