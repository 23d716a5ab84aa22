"""Entries of the C headers and of the Fortran module: each function and type with the comment above it."""

import re
import textwrap

# With the line that ends what is not an entry.
C_HEADERS = {"scripting/embed/moonhalo_c.h": "#define MH_MAX_DIMS", "scripting/embed/moonhalo_mpi.h": 'extern "C" {'}
FORTRAN = "scripting/embed/moonhalo.f90"
C_PART = re.compile(
    r"^/\*(?P<comment>.*?)\*/\n|^(?P<function>(?!typedef)[a-z][\w *]*?\b(?P<name>mh_\w+)\([^;{}]*\));"
    r"|^(?P<type>typedef [^;{}]*(?:\{(?P<body>.*?)\})?\s*(?P<type_name>mh_\w+));",
    re.DOTALL | re.MULTILINE,
)
PROCEDURE = re.compile(
    r"\s*(?:recursive )?(?:(?P<result>[\w() ,:]*)\s)?(?P<kind>subroutine|function|interface)"
    r" (?P<name>mh_\w+)(?P<arguments>\(.*?\))?"
)
WIDTH = 116


class PlainEntry:
    """A function or type and what its comment says. `language` is in front of its name, "C.mh_open"."""

    def __init__(self, file, line, language, name, signature, comment, is_type=False):
        self.file, self.line, self.language, self.problems = file, line, language, []
        words = " ".join(comment.split())
        if not words:
            self.problems.append(f"{file}:{line}: {name}: no comment that says what it is")
        elif not is_type and "ollective" not in words and not words.startswith("Does the same as"):
            self.problems.append(f"{file}:{line}: {name}: collective or not?")
        self.text = [signature] + [
            "  " + row for row in textwrap.wrap(words, WIDTH, break_long_words=False, break_on_hyphens=False)
        ]
        self.description = words
        self.signatures = [
            {
                "name": f"{language}.{name}",
                "text": signature,
                "function": True,
                "positional": [],
                "options": [],
                "result": "",
            }
        ]

    def check(self):
        """The comment is all that is asked for."""

    def as_json(self):
        collective = (
            "no" if "Not collective" in self.description or "ollective" not in self.description else "over the session"
        )
        return {
            "names": [one["name"] for one in self.signatures],
            "signatures": self.signatures,
            "description": self.description,
            "arguments": {},
            "returns": None,
            "whole": not self.problems,
            "collective": collective,
            "errors": [],
            "example": [],
            "file": self.file,
            "line": self.line,
        }


def undocumented_fields(body):
    """Fields without a comment behind or above; those below one comment share it. Enumerators in one line need none."""
    above = False
    for line in body.splitlines() if body.count("\n") > 1 else ():
        code = re.sub(r"/\*.*?(?:\*/|$)|^[^/]*\*/", "", line).strip()
        if not code or not re.search(r"[;,=]|\w$", code) or not re.match(r"[\w]", code):
            above = above or "/*" in line
        elif "/*" in line:
            above = False
        elif not above:
            yield code


def read_c(root):
    """Functions that follow one comment share it."""
    return [entry for name, begin in C_HEADERS.items() for entry in read_c_header(root, name, begin)]


def read_c_header(root, name, begin):
    text = (root / name).read_text(encoding="utf-8")
    comment, entries = "", []
    for part in C_PART.finditer(text, text.index(begin)):
        if part["comment"] is not None:
            comment = part["comment"]
            continue
        line = text.count("\n", 0, part.start()) + 1
        if part["type"]:
            entry = PlainEntry(name, line, "C", part["type_name"], part["type"] + ";", comment, is_type=True)
            fields = undocumented_fields(part["body"] or "")
            entry.problems += [f"{name}:{line}: {part['type_name']}: {field}: no comment" for field in fields]
            entries.append(entry)
            comment = ""
            continue
        signature = " ".join(part["function"].removeprefix("static inline ").split()) + ";"
        entries.append(PlainEntry(name, line, "C", part["name"], signature, comment))
    return entries


def public_names(text):
    names = re.search(r"public :: (mh_session.*?)\n\n", text, re.DOTALL)[1].replace("&", "").replace("\n", "")
    constants = re.findall(r"parameter, public :: (\w+)", text)  # the first of several
    return [name.strip() for name in names.split(",")] + constants


def fortran_part(line):
    """(name, signature, whether it is a type or constants) of what a line declares."""
    if declared := re.match(r"\s*(type(?:, bind\(c\))? :: (mh_\w+))|\s*(.*parameter, public :: (\w+).*)", line):
        return declared[2] or declared[4], declared[1] or declared[3], True
    if part := PROCEDURE.match(line):
        call = "result = " if part["kind"] == "function" else "call "
        return part["name"], call + part["name"] + (part["arguments"] or ""), False
    return None


def read_fortran(root):
    """The first comment of a public name counts, above its interface, its procedure or its type."""
    text = (root / FORTRAN).read_text(encoding="utf-8")
    found, comment, of_interface = {}, [], False  # functions of one interface share its comment
    joined = re.sub(r" *&\n *&?", " ", text)
    for line in joined.splitlines():
        stripped = line.strip()
        if stripped.startswith("!>"):
            comment.append(stripped[2:])
            continue
        part = fortran_part(line)
        if part and comment and not stripped.startswith("end "):
            name, signature, is_type = part
            usage = [one.strip() for one in comment if one.startswith("     ")]
            if usage:  # how to call it, written in the comment
                signature = signature.split(name)[0] + usage[0]
            words = " ".join(one for one in comment if not one.startswith("     "))
            found.setdefault(name, (signature, words, is_type))
        of_interface = stripped == "interface" or of_interface and not stripped.startswith("end interface")
        if not of_interface:
            comment = []
    entries = []
    for name in public_names(text):
        signature, words, is_type = found.get(name, (name, "", False))
        line = text.count("\n", 0, text.index(name)) + 1
        entries.append(PlainEntry(FORTRAN, line, "Fortran", name, signature, words, is_type))
    return entries
