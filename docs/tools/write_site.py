#!/usr/bin/env python3
"""Writes the sources of the site for Sphinx: the pages of docs/, and the pages of the reference. usage: write_site.py
SOURCE_FOLDER OUTPUT_FOLDER OPERATORS PYTHON. OPERATORS is what `moonhalo ops --all` prints, PYTHON what
reference_python.py prints. `./dev docs` calls it (docs/tools/README.md)."""

import json
import re
import shutil
import sys
from collections import defaultdict
from pathlib import Path

import pages
import reference
import reference_cpp

# Pages of Lua's reference: the beginning of a name -> title. The longest beginning counts.
LUA_PAGES = {
    "mh.nn.": "mh.nn: layers",
    "mh.optim.": "mh.optim: optimizers and schedules",
    "mh.data.": "mh.data: data sets",
    "mh.h5.": "mh.h5: files",
    "mh.metrics.": "mh.metrics",
    "mh.losses.": "mh.losses",
    "mh.diagnostics.": "mh.diagnostics",
    "mh.distributed.": "mh.distributed",
    "mh.init.": "mh.init",
    "mh.plot.": "mh.plot",
    "mh.testing.": "mh.testing",
    "mh.": "mh: functions",
    "Tensor": "Tensor",
    "DeviceMesh": "DeviceMesh",
    "Module": "Module",
    "Optimizer": "Optimizer",
    "": "Other objects",
}
LANGUAGES = {".lua": "lua", ".py": "python", ".c": "c", ".h": "cpp", ".cpp": "cpp", ".f90": "fortran"}
LETTERS = re.compile(r"([\\*_\[\]<>${}|#~^])")
NAME_OF_OPERATOR = re.compile(r"(aten|moonhalo)::([\w]+)")


def plain(text):
    """Text as Markdown, in which only `code` has a meaning."""
    return "".join(
        part if part.startswith("`") else LETTERS.sub(r"\\\1", part) for part in re.split(r"(`[^`]*`)", text)
    )


def code(text, language="lua"):
    return f"```{language}\n{text.rstrip()}\n```\n"


def sentence(text):
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if not text or text[-1] in ".!?" else ".")


def label(name):
    """The name of the place of an entry of Lua, for links. Sphinx does not distinguish mh.Replicate and mh.replicate."""
    return "lua-" + re.sub("[A-Z]", lambda letter: letter[0].lower() + "0", re.sub(r"\W", "-", name))


def called_name(span):
    """The name of an entry that a code span calls: "x:redistribute{mh.Replicate()}" -> "Tensor:redistribute"."""
    match = reference.NAME.match(span.split("(")[0].split("{")[0].strip())
    if not match or re.search(r"[^\w.:]", match[0]):
        return None
    return reference.parse_signature(match[0] + " -> nothing")["name"]


def lua_entry(entry):
    names = ", ".join(signature["name"] for signature in entry.signatures)
    labels = [f"({label(signature['name'])})=" for signature in entry.signatures]
    lines = [*labels, f"## {plain(names)}\n", code("\n".join(signature["text"] for signature in entry.signatures))]
    lines.append(plain(entry.description) + "\n")
    if entry.arguments:
        lines.append("| argument | type | meaning |\n|---|---|---|")
        for name, facts in entry.arguments.items():
            cells = (f"`{name}`", plain(facts["type"]), plain(facts["text"]))
            lines.append("| " + " | ".join(cells) + " |")
        lines.append("")
    if entry.returns:
        lines.append(f"Returns {plain(entry.returns['type'])}: {plain(entry.returns['text'])}\n")
    if entry.collective:
        lines.append(f"Collective: {plain(sentence(entry.collective['text']))}\n")
    lines += [f"Error: {plain(sentence(error['text']))}\n" for error in entry.errors]
    if entry.example:
        lines.append(code("\n".join(entry.example)))
    return "\n".join(lines)


def lua_pages(entries):
    """Title -> entries, in the order of LUA_PAGES."""
    found = {title: [] for title in LUA_PAGES.values()}
    for entry in sorted(entries, key=lambda one: one.signatures[0]["name"].lower()):
        name = entry.signatures[0]["name"]
        begin = max((one for one in LUA_PAGES if name.startswith(one)), key=len)
        if begin == "mh." and name.count(".") > 1:
            title = "mh." + name.split(".")[1]
            found.setdefault(title, []).append(entry)
        else:
            found[LUA_PAGES[begin]].append(entry)
    return {title: listed for title, listed in found.items() if listed}


def plain_entries(entries, language):
    lines = []
    for entry in entries:
        name = entry.signatures[0]["name"].split(".", 1)[1]
        lines.append(f"## {plain(name)}\n\n{code(entry.signatures[0]['text'], language)}\n{plain(entry.description)}\n")
    return "\n".join(lines)


def comment_as_markdown(comment):
    """A comment of C++, whose indented lines are code."""
    parts, indented = [], []
    for line in [*comment.splitlines(), ""]:
        if line.startswith("    ") and line.strip():
            indented.append(line[4:])
            continue
        if indented:
            parts.append("\n" + code("\n".join(indented), "cpp" if any(";" in one for one in indented) else "text"))
            indented = []
        parts.append(plain(line))
    return "\n".join(parts)


def cpp_page(header, about, entries):
    lines = [f"# moonhalo/{header}\n".replace("_", r"\_"), code(f'#include "moonhalo/{header}"', "cpp")]
    lines.append(comment_as_markdown(about) + "\n")
    for at, entry in enumerate(entries):
        level = "###" if entry.owner else "##"
        if not (entry.shares and entry.kind in ("function", "value") and at):
            lines.append(f"{level} {plain(entry.name.removeprefix('moonhalo::'))}\n")
        lines.append(code(entry.text + ("" if entry.kind in ("class", "macro") else ";"), "cpp"))
        following = entries[at + 1] if at + 1 < len(entries) else None
        if not (following and following.shares and following.owner is entry.owner):
            lines.append(comment_as_markdown(entry.comment) + "\n")
    return "\n".join(lines)


def python_page(entries):
    lines = ["# Python\n", "The package `moonhalo`, for models that stay in PyTorch.\n"]
    for entry in entries:
        level = "###" if entry["kind"] == "member" else "##"
        lines.append(f"{level} {plain('moonhalo.' + entry['name'])}\n")
        if entry["signature"]:
            lines.append(code(entry["signature"], "python"))
        lines.append(comment_as_markdown(entry["doc"]) + "\n")
    return "\n".join(lines)


def operators(printed):
    """Name -> what `moonhalo ops --all` prints about its overloads."""
    found = defaultdict(list)
    for line in printed.splitlines():
        schema = NAME_OF_OPERATOR.match(line)
        if schema:
            name = f"{schema[1]}::{schema[2]}"
        found[name].append(line)
    return found


def operator_order(named):
    """By names, LibTorch's internal ones last."""
    short = named[0].split("::")[1].lower()
    return short.startswith("_"), short


def operator_pages(printed, pages_of_pytorch):
    """First letter -> page. Each operator has its schemas, what becomes of it on blocks, and a link to PyTorch's page."""
    found = defaultdict(list)
    for name, lines in sorted(operators(printed).items(), key=operator_order):
        space, short = name.split("::")
        first = short.lstrip("_")[:1].upper()
        group = "moonhalo" if space == "moonhalo" else first if first.isalpha() else "other"
        link = f"[What it computes]({pages_of_pytorch[short]})\n" if short in pages_of_pytorch else ""
        found[group].append(f"## {plain(name)}\n\n{code(chr(10).join(lines), 'text')}\n{link}")
    head = (
        "Schemas, and for each overload: on which cuts it runs on blocks (`shards`), what it sends (`moves`), and the"
        " source of its numbers; `moonhalo help NAME` prints the same. [Operators on blocks](/operators.md) explains the"
        " words. Links lead to PyTorch's reference.\n"
    )
    return {group: f"# Operators: {group}\n\n{head}\n" + "\n".join(listed) for group, listed in found.items()}


def is_made(parts):
    """Whether a run made this file of examples/, or a folder has data."""
    return any(part in ("data", "__pycache__") or part.startswith("output") for part in parts[:-1])


# A block of Python and, after an empty line, the same in Lua: the site shows them side by side.
PAIR = re.compile(r"(^```python\n(?:(?!```).*\n)*```\n\n```lua\n(?:(?!```).*\n)*```\n)", re.MULTILINE)


class Site:
    def __init__(self, root, out):
        self.root, self.out, self.written = root, out, set()
        self.all = reference.read_entries(root)
        self.entries = {signature["name"] for entry in self.all for signature in entry.signatures}

    def write(self, name, text):
        """Files that stay the same keep their time, so that Sphinx reads only the others."""
        reference.write_if_new(self.out / name, text)
        self.written.add(self.out / name)

    def toctree(self, names, caption="", depth=1):
        options = [f":caption: {caption}"] if caption else []
        return "\n".join(["```{toctree}", f":maxdepth: {depth}", *options, "", *names, "```", ""])

    def copy_pages(self):
        """The pages of docs/: code spans that name a page become links."""
        known = {path.relative_to(self.root / "docs").as_posix() for path in pages.pages_of(self.root)}
        for path in pages.pages_of(self.root):
            name = path.relative_to(self.root / "docs").as_posix()
            if name != "README.md":
                self.write(name, self.with_links(path, known))
        for path in [*(self.root / "docs").rglob("*.svg"), *(self.root / "docs").rglob("*.png")]:
            target = self.out / path.relative_to(self.root / "docs")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
            self.written.add(target)

    def with_links(self, path, known):
        lines = []
        for _, line, language, _ in pages.lines_of(path.read_text(encoding="utf-8")):
            lines.append(
                line if language is not None or line.startswith(("#", "```")) else self.linked(path, line, known)
            )
        text = "\n".join(lines).replace("```output", "```text") + "\n"
        return PAIR.sub(r"````{container} pair\n\1````\n", text)

    def linked(self, path, line, known):
        def link(match):
            span = match[1]
            name = called_name(span)
            if name in self.entries and span.count("(") <= 1:
                return f"[`{span}`](#{label(name)})"
            for name in (span.removeprefix("docs/"), (path.parent / span).as_posix().split("/docs/")[-1]):
                if name in known and name != "README.md":
                    return f"[`{span}`](/{name})"
            return match[0]

        def to_tree(match):
            """A link to a file that is not on the site becomes its path."""
            target = match[2].split("#")[0]
            inside = (path.parent / target).resolve()
            is_picture = inside.suffix in (".svg", ".png")
            is_page = inside.suffix == ".md" and inside.is_relative_to(self.root / "docs")
            if re.match(r"[a-z]+:", match[2]) or not target or is_picture or is_page:
                return match[0]
            return f"{match[1]} (`{inside.relative_to(self.root).as_posix()}`)"

        parts = re.split(r"(\[[^\]]*\]\([^)]*\))", re.sub(r"(?<!!)\[([^\]]*)\]\(([^)]+)\)", to_tree, line))
        return "".join(one if one.startswith("[") else re.sub(r"`([^`]+)`", link, one) for one in parts)

    def order_of_pages(self):
        """The guide, and the others as in the table of docs/README.md."""
        names = [name for name in pages.listed_pages(self.root) if (self.root / "docs" / name).exists()]
        guide = sorted("guide/" + path.name for path in (self.root / "docs/guide").glob("*.md"))
        return guide, [name for name in names if not name.startswith("guide/")]

    def reference(self, printed_operators, python):
        of = {
            language: [one for one in self.all if getattr(one, "language", "Lua") == language]
            for language in ("Lua", "C", "Fortran")
        }
        listed = []
        for title, some in lua_pages(of["Lua"]).items():
            name = "reference/lua_" + re.sub(r"\W+", "_", title.split(":")[0].lower())
            self.write(name + ".md", f"# {title}\n\n" + "\n".join(lua_entry(one) for one in some))
            listed.append("/" + name)
        self.write("reference/lua.md", "# Lua\n\n" + self.toctree(listed))
        pages_of_operators = operator_pages(printed_operators, python["operators"])
        for group, text in pages_of_operators.items():
            self.write(f"reference/operators_{group.lower()}.md", text)
        self.write(
            "reference/operators.md",
            "# Operators of ATen\n\nEvery operator is a function of `mh` and a method of tensors, with the arguments of"
            " its schema. [PyTorch's reference](https://docs.pytorch.org/docs/stable/torch.html) says what it computes.\n\n"
            + self.toctree([f"/reference/operators_{group.lower()}" for group in sorted(pages_of_operators)]),
        )
        head = "# C\n\n`#include <moonhalo/moonhalo_c.h>`; for `mh_mpi_transport` `<moonhalo/moonhalo_mpi.h>`\n\n"
        self.write("reference/c.md", head + plain_entries(of["C"], "c"))
        self.write("reference/fortran.md", "# Fortran\n\n`use moonhalo`\n\n" + plain_entries(of["Fortran"], "fortran"))
        headers, (first, *others) = [], [name for name, _ in reference_cpp.included_by_users(self.root)]
        for header, (about, some) in reference_cpp.read_cpp(self.root).items():
            if some:
                name = "reference/cpp/" + header.removesuffix(".h").replace("/", "_")
                self.write(name + ".md", cpp_page(header, about, some))
                headers.append("/" + name)
        self.write(
            "reference/cpp.md",
            f"# C++\n\n`#include <{first}>` has everything but {', '.join(f'`{name}`' for name in others)}.\n\n"
            + self.toctree(headers),
        )
        self.write("reference/python.md", python_page(python["moonhalo"]))
        names = ["lua", "operators", "cpp", "c", "fortran", "python"]
        self.write(
            "reference/index.md", "# Reference\n\n" + self.toctree([f"/reference/{one}" for one in names], depth=2)
        )

    def examples(self):
        """The table of examples, and a page for each folder with its programs."""
        folders = defaultdict(list)
        for path in sorted((self.root / "examples").rglob("*")):
            if path.suffix in LANGUAGES and not is_made(path.relative_to(self.root).parts):
                folders[path.parent.relative_to(self.root / "examples").as_posix()].append(path)
        listed = []
        for folder, paths in folders.items():
            parts = [f"# examples/{folder}\n"]
            for path in paths:
                text = path.read_text(encoding="utf-8").removeprefix("-- SPDX-License-Identifier: Apache-2.0\n")
                parts.append(f"## {plain(path.name)}\n\n{code(text, LANGUAGES[path.suffix])}")
            listed.append("/examples/" + folder.replace("/", "_"))
            self.write(listed[-1][1:] + ".md", "\n".join(parts))
        table = (self.root / "examples/README.md").read_text(encoding="utf-8").partition("\n")[2]
        self.write("examples/index.md", "# Examples\n" + table + "\n" + self.toctree(listed))

    def index(self):
        guide, others = self.order_of_pages()
        first = (self.root / "README.md").read_text(encoding="utf-8").split("\n\n")
        text = ["# Moonhalo", first[1], first[2]]
        if guide:
            text.append(self.toctree(guide, "Guide"))
        text += [
            self.toctree(others, "Pages"),
            self.toctree(["examples/index"], "Examples", 2),
            self.toctree(["reference/index"], "Reference", 2),
        ]
        self.write("index.md", "\n\n".join(text))

    def remove_others(self):
        for path in self.out.rglob("*"):
            if path.is_file() and path not in self.written:
                path.unlink()


def main():
    root, out, operators_file, python_file = (Path(one) for one in sys.argv[1:5])
    site = Site(root.resolve(), out.resolve())
    site.copy_pages()
    site.reference(operators_file.read_text(encoding="utf-8"), json.loads(python_file.read_text(encoding="utf-8")))
    site.examples()
    site.index()
    site.remove_others()
    print(f"{len(site.written)} files")


if __name__ == "__main__":
    main()
