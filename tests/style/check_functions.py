#!/usr/bin/env python3
"""Checks that functions have at most 60 lines: of C++, CUDA, Lua and Python, also tests. long_functions.txt lists those
that are longer, with their lines; the list may only become shorter.  usage: check_functions.py SOURCE_FOLDER"""

import ast
import re
from pathlib import Path

from checked import is_output, main, problems_in

MAX_LINES = 60
LIST = "tests/style/long_functions.txt"
FOLDERS = ("engine", "ops", "io", "scripting", "tests", "examples", "docs")
# The first line of a function of C++ as clang-format leaves it, outside of functions or in a class.
NOT_A_FUNCTION = re.compile(
    r"\s*(?:if|for|while|switch|do|else|try|catch|case|return|namespace|enum|union|class|struct|extern|using)\b"
    r"|(?!.*\boperator)[^(]*[={]|.*\[[&=\w, ]*\]\s*\("
)
C_FUNCTION = re.compile(r"(operator\W{1,3}|[\w~:]+)\(")
C_TEST = re.compile(r"(TEST(?:_[FP])?\([\w, ]+\))")
LUA_FUNCTION = re.compile(r"(?:local )?function ([\w.:]+)\(|([\w.]+) = function\(|(return) function\(")
BETWEEN = re.compile(r"\s*(?://|#|--|public:|private:|protected:|else\b|elseif\b|case\b|default:)")


def start_of(lines, end, indent):
    """The line above `end` that opens what it closes: the nearest one that is indented no deeper."""
    for number in range(end - 1, -1, -1):
        line = lines[number]
        if line.strip() and not BETWEEN.match(line) and len(line) - len(line.lstrip()) <= indent:
            return number
    return None


def of_cpp(lines):
    for end, line in enumerate(lines):
        if not re.match(r"(?:  )?}(?:  //.*)?$", line):
            continue
        start = start_of(lines, end, len(line) - len(line.lstrip()))
        if start is None or NOT_A_FUNCTION.match(lines[start]):
            continue
        name = C_TEST.match(lines[start]) or C_FUNCTION.search(lines[start])
        if name:
            yield name[1], end - start + 1


def of_lua(lines):
    for end, line in enumerate(lines):
        if not re.match(r"end[,)}]*$", line):
            continue
        start = start_of(lines, end, 0)
        name = start is not None and LUA_FUNCTION.match(lines[start])
        if name:
            # Entries of the reference do not count, as in check_sources.py.
            entry_lines = sum(line.lstrip().startswith("---") for line in lines[start:end])
            yield name[1] or name[2] or name[3], end - start + 1 - entry_lines


def of_python(lines):
    for node in ast.walk(ast.parse("\n".join(lines))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, node.end_lineno - node.lineno + 1


READERS = {".cpp": of_cpp, ".h": of_cpp, ".c": of_cpp, ".cu": of_cpp, ".cuh": of_cpp, ".lua": of_lua, ".py": of_python}


def long_functions(root):
    """{(file, function): lines} of those with more than MAX_LINES; of several of one name the longest."""
    found = {}
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            reader = READERS.get(path.suffix)
            if reader is None or not path.is_file() or is_output(root, path):
                continue
            file = path.relative_to(root).as_posix()
            for name, count in reader(path.read_text(encoding="utf-8").splitlines()):
                if count > MAX_LINES:
                    found[file, name] = max(count, found.get((file, name), 0))
    return found


def listed_functions(path):
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    for line in lines:
        if line and not line.startswith("#"):
            count, file, name = line.split(" ", 2)
            yield (file, name), int(count)


def check(root):
    found, listed = long_functions(root), dict(listed_functions(root / LIST))
    problems = []
    for (file, name), count in found.items():
        most = listed.get((file, name), MAX_LINES)
        if count > most:
            problems.append(f"{file}: {name} has {count} lines, more than {most}; divide it into named steps")
        elif count < most:
            problems.append(f"{LIST}: {file}: {name} has {count} lines by now; list that")
    for file, name in listed.keys() - found.keys():
        problems.append(f"{LIST}: {file}: {name} has at most {MAX_LINES} lines, or is gone; remove its line")
    return sorted(problems)


def self_test():
    """Every kind of problem is found in a tree that has one of each."""
    short, long = "    a();\n" * 58, "    a();\n" * 60
    member = f"class A {{\n  void g(int a,\n         int b) {{\n{long}  }}\n}};\n"
    files = {
        "engine/a.cpp": f"int f(int x) {{\n{long}\n}}\n{member}",
        "engine/b.cpp": f"int f() {{\n{short}}}\nconst X kTable{{\n{long}}};\nnamespace {{\n{long}}}\n",
        "tests/c.cpp": f"TEST(A, B) {{\n  // x\n{long}}}\nbool operator==(A a, A b) {{\n{long}}}\n",
        "scripting/d.lua": f"local function f()\n{long}end\nfor a in b do\n{long}end\n",
        "scripting/f.lua": f"function a.b()\n  --- x\n{short}end\n",
        "scripting/e.py": f"def f():\n{long}\ndef g():\n{short}",
        LIST: "# comment\n65 engine/a.cpp f\n90 tests/c.cpp TEST(A, B)\n61 scripting/e.py g\n",
    }
    found = problems_in(files, check)
    expected = ["engine/a.cpp", "scripting/d.lua", "scripting/e.py", "tests/c.cpp", LIST, LIST, LIST]
    assert found == expected, f"self-test: found {found}"


if __name__ == "__main__":
    main(check, self_test, f"functions have at most {MAX_LINES} lines, but for those of {Path(LIST).name}")
