#!/usr/bin/env python3
"""Checks what a formatter cannot: license lines, file lengths, tabs, the direction of includes between folders, that
comments are sentences, that every op rule has a case table and finds arguments by name, that Lua does not depend on the
order of hashes, and that it asks whether files were written.  usage: check_sources.py SOURCE_FOLDER"""

import re
import sys
from pathlib import Path

from checked import is_output, main, problems_in

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs/tools"))
from reference import entry_line_count  # noqa: E402

SHARED_TESTS = "tests/style/shared_tests.txt"
MAX_SOURCE_LINES = 500
# Entries of the reference do not count: they are read alone (docs/tools/README.md).
ENTRY_MARKS = {".cpp": ("///",), ".lua": ("---",)}
SOURCE_FOLDERS = ("engine", "ops", "io", "scripting", "tests", "examples", "cmake")
LICENSE = "// SPDX-License-Identifier: Apache-2.0"
SUFFIXES = {".cpp", ".h", ".cu", ".cuh", ".lua", ".cmake", ".py"}
# What each folder may include, itself aside.
MAY_INCLUDE = {"engine": set(), "ops": {"engine"}, "io": {"engine"}, "scripting": {"engine", "ops", "io"}}
# Lua goes through tables in an order that differs between ranks by `next` and `rawpairs`; `pairs` is Moonhalo's and the
# same on all. Asking whether a table is empty, `next(t) == nil`, is free.
LUA_FOLDERS = ("scripting", "examples", "configs")
# Columns of a line. Not checked: scripts of mistakes, whose lines the recorded messages name, and tests in C++, which
# clang-format keeps within them but for texts that they quote whole.
MAX_WIDTH = 120
WRITTEN_PAGE = "<!-- Written by docs/tools/"
OUTPUT_BLOCKS = {"", "text"}
OWN_ORDER = re.compile(r"(?<![\w.:])(?:rawpairs|next(?! = function|\([\w.]+\) [=~]= nil))\b")
OWN_ORDER_ALLOWED = {
    ("scripting/lua/log.lua", "for name, value in next, record do"): "asks whether there is a tensor, in any order",
    ("scripting/lua/internal/strict.lua", "for key, value in next, self do all[key] = value end"): "copies a table",
    (
        "scripting/lua/internal/strict.lua",
        "for key, value in next, checked_fields[self] or {} do all[key] = value end",
    ): "copies a table",
    ("scripting/lua/internal/arguments.lua", "for key in rawpairs(value) do"): "asks whether all keys are texts",
}
# Lua's files do not raise errors: a full disk is told by what these return. A call that is a statement does not ask.
# Files of mh.h5 raise errors; examples call one `nc`.
FILE_CALLS = re.compile(
    r"(?:^|[;)]|\b(?:then|do|else|repeat|end))\s*"
    r"(?:(?!(?:io\.stderr|nc)\b)[\w.]+(?:\([^()]*\))?:(?:write|close|flush)|os\.(?:rename|remove))\s*[({\"']"
)
FILE_CALLS_ALLOWED = {
    ("scripting/lua/progress.lua", "io.stdout:flush()"): "asked once for all, at the end of the program",
    ("scripting/lua/progress.lua", "if meter then meter:close() end"): "no file",
    (
        "examples/climate/train.lua",
        'file:write("", prediction, {attrs = {units = "", long_name = ""},',
    ): "of mh.h5, which raises errors",
    ("examples/climate/train.lua", "file:close()"): "of mh.h5, which raises errors",
    (
        "examples/sst/train.lua",
        'out:write("", mh.cat(predicted, 0), {like = file.sst[(""):format(first, data.steps)], compression = 1})',
    ): "of mh.h5, which raises errors",
    ("examples/sst/train.lua", "out:close()"): "of mh.h5, which raises errors",
}
# The same of C++: calls of POSIX, C and HDF5 that tell of a full disk, as statements. HDF5's identifiers are closed by
# h5::Handle; whether stdout was written is asked once, at the end of the program.
CPP_FOLDERS = ("io", "scripting")
CPP_FILE_CALLS = re.compile(
    r"(?:^|[;{})]|\belse)\s*(?:\(void\)\s*)?(?!.*\) [=!<>]= )"
    r"(?:::(?:close|write|rename)|(?:::)?(?:pwrite|fsync|ftruncate)|(?:std::)?fclose|std::rename"
    r"|(?:std::)?f(?:flush|write|puts)(?!\(.*\b(?:stdout|stderr|nullptr)\))|H5(?:[A-Z]|[A-Z]+_?)close|H5[FD]flush)\s*\("
)
CPP_FILE_CALLS_ALLOWED = {
    (
        "io/base/positioned_file.cpp",
        "if (descriptor_ >= 0) ::close(descriptor_);",
    ): "sync() has said whether it was written",
    ("io/base/new_file.cpp", "if (descriptor >= 0) ::close(descriptor);"): "opened for reading",
    ("io/base/new_file.cpp", "std::fclose(file);"): "opened for reading",
    ("io/formats/file_driver.cpp", "::close(descriptor);"): "nothing was written through it",
    ("scripting/program/session.cpp", "if (file) std::fclose(file);"): "nothing was written through it",
}
# Rules find arguments by name (OpCall::arg): a number would go on reading its place in a schema that was reordered.
POSITION = re.compile(
    r"\bArg\{\s*\d|\b(?:argument|tensor|value|spec|slot)\((?:\w+, )*\d+\)"
    r"|\(call, (?:\w+, )*\d+[,)]|\bslots\(\)\[\d|\barguments\(\)\[\d|\.arg(?:\.index)? [=!]= \d"
)
# Comments are sentences that say why. One that opens with a word of OPENING is a part of a sentence, and one with a
# word of PERSON speaks of persons where ranks or code are meant.
COMMENTS = {".cpp", ".h", ".cu", ".cuh", ".lua"}
COMMENT = re.compile(r"\s*(?://|--)")
OPENING = re.compile(r"\s*(?://+|--+) (?:What|Of|Who|Whose|Whom|How|Why|Which|Whether)\b")
PERSON = re.compile(r"(?://|--) .*\b(?:[Nn]obody|[Ss]omebody|[Ee]verybody|of ours|of one's own)\b")
# Messages of the engine reach scripts in Lua, programs in C++ and Python: code in them is of one language.
MANY_LANGUAGES = ("engine", "ops", "io")
TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')
CODE_IN_TEXT = re.compile(r"\bmh(?:\.|::)[A-Za-z]|[a-z]\w*:[a-z_]+\(")
CODE_IN_TEXT_ALLOWED = "engine/base/remedies.cpp"  # says it in each language
# Tests are full of cases, kCuts and check(): each file has a namespace of its own.
OWN_NAMESPACE = re.compile(r"tests/(?:engine|io|ops|scripting)/(?:\w+/)*test_\w+\.cpp")
# A function of an unnamed namespace, at the start of its line.
OWN_FUNCTION = re.compile(r"(?!return|namespace|using|template|else)[A-Za-z_][\w:<>,&*\s\[\]]*?[\s&*](\w+)\(")
# The umbrella header collects every folder's interface for users; only users and tests include it.
UMBRELLA = "engine/moonhalo.h"


def sources(root):
    if (root / "CMakeLists.txt").is_file():
        yield root / "CMakeLists.txt"
    for folder in SOURCE_FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            named = path.suffix in SUFFIXES or path.name == "CMakeLists.txt"
            if named and path.is_file() and not is_output(root, path):
                yield path


def is_narrow(name, suffix):
    """Whether lines of this file may have MAX_WIDTH characters at most."""
    is_test_in_cpp = name.startswith("tests/") and suffix in {".cpp", ".h"}
    return not is_test_in_cpp and not name.startswith("tests/scripting/mistakes/")


def check_pages(root, problems):
    """The widths of pages, but for rows of tables, output of programs, and pages that docs/tools/ writes."""
    for path in sorted((root / "docs").rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        block = None  # the language of a block of code
        for number, line in enumerate([] if WRITTEN_PAGE in text else text.splitlines(), 1):
            if line.startswith("```"):
                block = line[3:] if block is None else None
            elif len(line) > MAX_WIDTH and not line.startswith("|") and block not in OUTPUT_BLOCKS:
                name = path.relative_to(root).as_posix()
                problems.append(f"{name}:{number}: {len(line)} characters, more than {MAX_WIDTH}")


def check_text(root, path, problems):
    name = path.relative_to(root).as_posix()
    lines = path.read_text(encoding="utf-8").splitlines()
    if path.suffix in {".cpp", ".h", ".cu", ".cuh"} and lines[:1] != [LICENSE]:
        problems.append(f"{name}:1: the first line is not {LICENSE!r}")
    length = len(lines) - sum(
        entry_line_count(path.read_text(encoding="utf-8"), mark) for mark in ENTRY_MARKS.get(path.suffix, ())
    )
    if length > MAX_SOURCE_LINES:
        problems.append(f"{name}: {length} lines, more than {MAX_SOURCE_LINES}; split it by purpose")
    for number, line in enumerate(lines, 1):
        if "\t" in line:
            problems.append(f"{name}:{number}: a tab; indent with spaces")
        if line != line.rstrip():
            problems.append(f"{name}:{number}: spaces at the end of the line")
        if len(line) > MAX_WIDTH and is_narrow(name, path.suffix):
            problems.append(f"{name}:{number}: {len(line)} characters, more than {MAX_WIDTH}")
    if path.suffix in COMMENTS:
        for number, (before, line) in enumerate(zip(["", *lines], lines), 1):
            if PERSON.search(line) or (OPENING.match(line) and (before == LICENSE or not COMMENT.match(before))):
                problems.append(f"{name}:{number}: a comment that is no sentence, or speaks of persons")
    folder = name.split("/")[0]
    if OWN_NAMESPACE.match(name):
        problems += [
            f"{name}:{number}: its namespace is ...::{path.stem}: files of a folder are compiled together"
            for number, line in enumerate(lines, 1)
            if re.match(r"namespace moonhalo[\w:]* {$", line) and f"::{path.stem} " not in line
        ]
    if folder in MANY_LANGUAGES and path.suffix in COMMENTS and name != CODE_IN_TEXT_ALLOWED:
        problems += [
            f"{name}:{number}: code of one language in a message; say it in words, or in engine/base/remedies.cpp"
            for number, line in enumerate(lines, 1)
            if CODE_IN_TEXT.search(" ".join(TEXT.findall(line))) and not COMMENT.match(line)
        ]
    if folder not in MAY_INCLUDE or name == UMBRELLA:
        return
    for number, line in enumerate(lines, 1):
        match = re.match(r'\s*#include "(?:moonhalo/)?([a-z]+)/', line)
        if match and match[1] != folder and match[1] in {*MAY_INCLUDE, "tests"} - MAY_INCLUDE[folder]:
            problems.append(f"{name}:{number}: {folder}/ may not include {match[1]}/ (scripting -> io, ops -> engine)")


def check_lines(root, problems, folders, suffix, pattern, allowed, complaint):
    """Lines that match, less strings and comments, but for those allowed: (file, line) -> reason."""
    unused = set(allowed)
    comment = "--" if suffix == ".lua" else "//"
    for folder in folders:
        for path in sorted((root / folder).rglob("*" + suffix)):
            if is_output(root, path):
                continue
            name = path.relative_to(root).as_posix()
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                code = re.sub(r'"[^"]*"', '""', line).split(comment)[0].strip()
                if not pattern.search(code):
                    continue
                if (name, code) in allowed:
                    unused.discard((name, code))
                else:
                    problems.append(f"{name}:{number}: {complaint}")
    for name, code in sorted(unused):
        if (root / name).is_file():
            problems.append(f"{name}: '{code}' is allowed by the check, but not there")


def rule_ops(text):
    """The operator names of the rule records in a source, without namespace and overload."""
    if "const Register" not in text:
        return set()
    names = re.findall(r'"aten::([a-z_0-9]+)', text)
    return set(names)


def check_own_functions(root, problems):
    """Files of a folder are compiled together: a function of one would be an overload of another's, and could be called
    instead."""
    seen = {}
    for path in sorted(
        path for folder in ("engine", "io", "ops", "scripting") for path in (root / folder).rglob("*.cpp")
    ):
        own = False
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            own = (own or line == "namespace {") and line != "}  // namespace"
            match = OWN_FUNCTION.match(line) if own else None
            if match and seen.setdefault((path.parent, match[1]), path) != path:
                problems.append(
                    f"{path.relative_to(root).as_posix()}:{number}: {seen[path.parent, match[1]].name} has a function "
                    f"'{match[1]}', too; files of a folder are compiled together"
                )


def check_rules_have_tests(root, problems):
    """ops/FOLDER/FILE.cpp with rules is tested by tests/ops/FOLDER/test_FILE.cpp, or by the file that SHARED_TESTS
    names."""
    shared, path = {}, root / SHARED_TESTS
    if path.is_file():
        lines = path.read_text(encoding="utf-8").splitlines()
        shared = dict(line.split() for line in lines if line and not line.startswith("#"))
    for path in sorted((root / "ops").rglob("*.cpp")):
        name, ops = path.relative_to(root).as_posix(), rule_ops(path.read_text(encoding="utf-8"))
        own = f"tests/{path.parent.relative_to(root).as_posix()}/test_{path.stem}.cpp"
        test = shared.pop(name, own)
        if not ops:
            continue
        if not (root / test).is_file():
            problems.append(f"{name}: no {test}, which would test its rules ({', '.join(sorted(ops))})")
        elif test != own and (root / own).is_file():
            problems.append(f"{SHARED_TESTS}: {name} has its own test file by now")
        elif not any(re.search(rf"\b{re.escape(op)}\b", (root / test).read_text(encoding="utf-8")) for op in ops):
            problems.append(f"{name}: {test} mentions no op of its rules ({', '.join(sorted(ops))})")
    problems += [f"{SHARED_TESTS}: no file {name}" for name in sorted(shared)]


def check(root):
    problems = []
    for path in sources(root):
        check_text(root, path, problems)
    check_pages(root, problems)
    check_own_functions(root, problems)
    check_rules_have_tests(root, problems)
    check_lines(
        root,
        problems,
        LUA_FOLDERS,
        ".lua",
        OWN_ORDER,
        OWN_ORDER_ALLOWED,
        "goes through a table in an order that ranks do not share; use pairs",
    )
    for suffix in (".cpp", ".h"):
        check_lines(
            root, problems, ("ops",), suffix, POSITION, {}, "names an argument by its place; use call.arg(NAME)"
        )
    not_asked = "does not ask whether the file was written; look at what the call returns"
    check_lines(root, problems, LUA_FOLDERS, ".lua", FILE_CALLS, FILE_CALLS_ALLOWED, not_asked)
    check_lines(root, problems, CPP_FOLDERS, ".cpp", CPP_FILE_CALLS, CPP_FILE_CALLS_ALLOWED, not_asked)
    for suffix in (".cpp", ".h"):
        check_lines(
            root,
            problems,
            SOURCE_FOLDERS,
            suffix,
            re.compile("at::parallel_for"),
            {},
            "a plain loop where the compiler's OpenMP is not LibTorch's; use engine/base/parallel.h",
        )
    return problems


def tree_of_mistakes():
    """One or more of every kind of problem: name of a file -> text."""
    return {
        "engine/a.cpp": LICENSE + '\n#include "moonhalo/ops/b.h"\n' + "int x;\n" * 500,
        "engine/d.h": (
            LICENSE
            + "\n// What it is.\nint x;  // What\n/// Says\n/// What is.\nint y;  // nobody's\n  /// Of this rank.\n"
        ),
        "engine/moonhalo.h": LICENSE + '\n#include "moonhalo/ops/b.h"\n',
        "ops/b.cpp": LICENSE + '\nint\ty; \nconst Register rule{{.op = "aten::relu"}};\n',
        "ops/e/f.cpp": LICENSE + '\nconst Register rule{{.op = "aten::exp"}};\n',
        "ops/e/g.cpp": LICENSE + '\nconst Register rule{{.op = "aten::log"}};\n',
        "ops/e/p.cpp": (
            LICENSE + "\nargument(op, stack, 3);\ncall.value(Arg{0});\ntensor(6);\nargument(op, stack, at);\n"
            "call.tensor(at_0); // tensor(6)\nnumber_of(call, 7);\ncall.slots()[0].spec;\nslot.arg == 1;\nx.spec(2);\n"
            'schema.arguments()[0];\ncall.slot("x");\nresults[0].toTensor();\n'
        ),
        "tests/ops/e/test_f.cpp": LICENSE + "\nat::exp(x);\n",
        "tests/ops/test_c.cpp": "at::prelu(x);\n",
        "tests/style/shared_tests.txt": (
            "# comment\nops/e/f.cpp tests/ops/test_c.cpp\nops/e/g.cpp tests/ops/test_c.cpp\nops/h.cpp x\n"
        ),
        "scripting/d.lua": (
            'if next(t.u) == nil and x.next then f("next") end -- next\nfor k in next, t do end\nlocal k = next(t)\n'
        ),
        "examples/e.lua": (
            'f:write("x") -- 1\nlocal ok = f:write("x")\nif x then a.b:close() end\nio.stderr:write("x")\n'
            'os.remove(p)\nassert(os.rename(a, b))\nio.open(p, "w"):write "x"\nfor i in l do f:flush() end\n'
            'return f:write("x")\nlocal text = "f:write()"\n'
        ),
        "examples/e/output_1/source/e.lua": "os.remove(p)\n" + "x" * 121 + "\n",
        "scripting/f.cpp": (
            LICENSE
            + "\n::close(one);\nif (::close(one) != 0) fail();\nif (file) std::fclose(file);\nreturn ::close(one);\n"
            "(void)fsync(one); // 6\nint failed = std::fflush(file);\nstd::fflush(stdout);\nH5Fclose(file);\n"
            'make(H5Fclose, file);\n} H5Fflush(file, scope);\nfile.close();\nprint("::close(one);"); // ::close(one);\n'
            "else std::rename(a, b);\nwhile (on) ::write(one, data, size);\nH5Dclose(id); H5Sclose(id);\n"
        ),
        "docs/a.md": (
            "x" * 121 + "\n|" + "x" * 120 + "\n```text\n" + "x" * 121 + "\n```\n" + "x" * 121 + "\n```lua\n" + "x" * 121
        ),
        "docs/b/c.md": "<!-- Written by docs/tools/c.py. -->\n" + "x" * 121 + "\n",
        "CMakeLists.txt": "set(a " + "x" * 120 + ")\n",
        "cmake/b.cmake": "# " + "x" * 118 + "\n# " + "x" * 119 + "\n",
        "io/a/b.cpp": LICENSE + "\nnamespace {\nint own(int a) {\n}\n}  // namespace\nint shown(int a) {\n",
        "io/a/c.cpp": LICENSE + "\nnamespace {\nconst Box& own() {\n  return own(1);\n}\nint shown(int a) {\n",
        "io/d.cpp": LICENSE + "\nnamespace {\nint own(int a) {\n",
        "io/e.cpp": (
            LICENSE + '\nf("give mh.Shard(0)");\nf("give x:to(1)");\nf("give to(1)", mh::b);\n//'
            ' "mh.barrier()"\nf("mh::barrier()");\n'
        ),
        "scripting/g.h": LICENSE + "\nat::parallel_for(0, n, 1, f);\nparallel_for(0, n, 1, f);  // at::parallel_for\n",
        "scripting/lua/internal/arguments.lua": (
            "for key in rawpairs(value) do\nend\nfor key in rawpairs(other) do end\n--" + "x" * 119 + "\n"
        ),
    }


def problems_in_tree_of_mistakes():
    wanted = [
        "CMakeLists.txt:1",
        "engine/a.cpp",
        "engine/a.cpp:2",
        "engine/d.h:2",
        "engine/d.h:6",
        "engine/d.h:7",
        "ops/b.cpp:2",
        "ops/b.cpp:2",
        "io/e.cpp:2",
        "io/e.cpp:3",
        "io/e.cpp:6",
        "scripting/lua/internal/arguments.lua:4",
        "tests/ops/test_c.cpp:1",
        "cmake/b.cmake:2",
        "docs/a.md:1",
        "docs/a.md:6",
        "docs/a.md:8",
    ]
    wanted += ["io/a/c.cpp:3", "ops/b.cpp"]
    wanted += ["tests/style/shared_tests.txt", "ops/e/g.cpp", "tests/style/shared_tests.txt"]
    wanted += ["scripting/d.lua:2", "scripting/d.lua:3", "scripting/lua/internal/arguments.lua:3"]
    wanted += [f"ops/e/p.cpp:{line}" for line in (2, 3, 4, 7, 8, 9, 10, 11)]
    wanted += [f"examples/e.lua:{line}" for line in (1, 3, 5, 7, 8)]
    wanted += [f"scripting/f.cpp:{line}" for line in (2, 4, 6, 9, 11, 14, 15, 16)]
    wanted += ["scripting/g.h:2"]
    return wanted


def self_test():
    """Every kind of problem is found in a tree that has one of each."""
    found = problems_in(tree_of_mistakes(), check)
    assert found == problems_in_tree_of_mistakes(), f"self-test: found {found}"


if __name__ == "__main__":
    main(check, self_test, "sources follow the style rules")
