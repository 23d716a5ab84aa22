#!/usr/bin/env python3
"""Checks that tests depend neither on what runs beside them nor on how fast the machine is: each has files of its own,
is made in one way (cmake/MoonhaloAddTest.cmake), compares no times, and what ends a hang leaves a busy machine time.
usage: check_tests.py SOURCE_FOLDER"""

import re
from pathlib import Path

from checked import main, problems_in

CODE = {".cpp", ".h", ".c", ".lua", ".py", ".cmake", ".sh"}
# A folder that all programs share. Files of C++ lie in testing::Folder, those of scripts where support.own_path says,
# those of C and CMake in TMPDIR, which is the test's own; Python's tempfile makes new names.
SHARED_FOLDER = re.compile(
    r"TempDir\(\)|temp_directory_path|[\"'`("
    r" =>-]/(?:var/)?tmp(?![\w.])|/dev/shm|os\.tmpname|\btmpnam\b|gettempdir|mktemp -u"
)
SHARED_FOLDER_ALLOWED = {
    (
        "tests/support/folder.h",
        'std::string name = std::filesystem::temp_directory_path() / "moonhalo-XXXXXX";',
    ): "made by mkdtemp",
    ("tests/support/in_folder.sh", 'folder=$(mktemp -d "${TMPDIR:-/tmp}/moonhalo.XXXXXXXX") || exit'): "made by mktemp",
    (
        "tests/scripting/support/own_path.lua",
        'local stem = ("%s/moonhalo_%x_"):format(os.getenv("TMPDIR") or "/tmp", math.random(1 << 60))',
    ): "drawn anew in every run",
    (
        "tests/scripting/checkpoint.lua",
        '{function(all) all.entries["/tmp/x"] = 1 end, in_file .. "\'/tmp/x\' cannot be the name of an entry"},',
    ): "never written",
    (
        "tests/engine/dispatch/test_program_guarantees.cpp",
        'for (const std::string folder : {"/home/moonhalo/", "/tmp/m\\xc3\\xb6nd halo/moonhalo/", "/src/", "/", ""}) {',
    ): "never written",
}
# Benchmarks and third-party models are run by persons, one at a time; names of their files have the process in them.
NOT_TESTS = ("tests/bench/", "tests/models/", "tests/style/", "tests/fuzz/found/")
# How long something took must not decide. That ranks were told, and did not end by their time limit, is seen by what
# they say.
TIMES = re.compile(
    r"(?:EXPECT|ASSERT)_[LG][TE]\(.*(?:[Cc]lock(?:::now\(\)| *-"
    r" )|Wtime|\bseconds\b|elapsed)|EXPECT\(.*(?:Wtime\(\)|\bseconds\b) *[-<]"
    r"|\bseconds GREATER|\(\(SECONDS - "
)
TIMES_ALLOWED = {("tests/embed/host_budget.c", "EXPECT(h->rank == 1 || seconds >= limit);"): "no machine is too early"}
# Makes a test of CTest, or gives one its limit.
OWN_TEST = re.compile(r"(?<!moonhalo_)\badd_test\(|\bPROPERTIES\b.*\bTIMEOUT\b|^\s*TIMEOUT\b")
OWN_TEST_ALLOWED = ("cmake/MoonhaloAddTest.cmake", "cmake/gtest_suites.cmake", "cmake/device_suites.cmake")
# Limits of what a test starts, in seconds.
LIMIT = re.compile(r"(?:\bTIMEOUT |\btimeout(?: -[ks] \w+)*[ =]|LIMIT_S = )(\d+)\b")
LEAST_LIMIT = 120


def lines_of(root, folders, suffixes):
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            name = path.relative_to(root).as_posix()
            if path.suffix in suffixes and path.is_file() and not name.startswith(NOT_TESTS):
                for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
                    yield name, number, line.strip()


def without_policies(root):
    """Scripts of CMake that do not name a version. They run under policies of CMake 2: "@OUTPUT@" in quotes is a
    variable there."""
    for path in sorted((root / "tests").rglob("*.cmake")):
        if "cmake_minimum_required(" not in path.read_text(encoding="utf-8"):
            yield (
                f"{path.relative_to(root).as_posix()}: no cmake_minimum_required(VERSION 3.25), as any script of CMake"
                " needs"
            )


def check(root):
    problems, unused = list(without_policies(root)), set(SHARED_FOLDER_ALLOWED)
    for name, number, line in lines_of(root, ["tests"], CODE):
        if SHARED_FOLDER.search(line) and not line.startswith(("//", "--", "#", "*")):
            if (name, line) in SHARED_FOLDER_ALLOWED:
                unused.discard((name, line))
            else:
                problems.append(
                    f"{name}:{number}: a folder that other tests see, too; use testing::Folder (C++), support.own_path"
                    " (Lua) or TMPDIR"
                )
        if TIMES.search(line) and (name, line) not in TIMES_ALLOWED:
            problems.append(f"{name}:{number}: compares how long something took, which a busy machine decides")
    for name, number, line in lines_of(root, ["cmake", "tests"], CODE):
        if OWN_TEST.search(line) and name.endswith(".cmake") and name not in OWN_TEST_ALLOWED:
            problems.append(f"{name}:{number}: a test without a folder and a limit; use moonhalo_add_test")
        limit = LIMIT.search(line)
        if limit and int(limit[1]) < LEAST_LIMIT and name not in OWN_TEST_ALLOWED and ".lua" not in name:
            problems.append(f"{name}:{number}: a limit of {limit[1]} s, which is for hangs: at least {LEAST_LIMIT} s")
    problems += [
        f"{name}: '{line}' is allowed by the check, but not there"
        for name, line in sorted(unused)
        if (root / name).is_file()
    ]
    return problems


def self_test():
    """Every kind of problem is found in a tree that has one of each."""
    files = {
        "cmake/MoonhaloTests.cmake": (
            "add_test(NAME a COMMAND b)\nmoonhalo_add_test(NAME a COMMAND b)\nset_tests_properties(a PROPERTIES TIMEOUT"
            " 600)\nset_tests_properties(a PROPERTIES LABELS b)\n  TIMEOUT 600\n"
        ),
        "cmake/gtest_suites.cmake": 'add_test("${name}" a)\n',
        "tests/a.cpp": (
            'path = ::testing::TempDir() + "a";\npath = std::filesystem::temp_directory_path() / "a";\nconst Folder'
            ' folder;\nopen("/tmp/a");\n// in /tmp\nopen("/tmpfs");\nopen("/dev/shm/a");\n'
        ),
        "tests/b.lua": (
            'local path = (os.getenv("TMPDIR") or "/tmp") .. "/a"\nlocal path = os.getenv("TMPDIR") ..'
            ' "/a"\nos.tmpname()\n'
        ),
        "tests/c.sh": (
            "echo >/tmp/a\ntimeout -k 1 60 sleep 1\ntimeout -k 1 300 sleep 1\nif ((SECONDS - begin > 3)); then\n"
        ),
        "tests/d.py": (
            "subprocess.run(a, timeout=60)\nsubprocess.run(a, timeout=600)\ntempfile.mkdtemp()\nLIMIT_S = 60\n"
        ),
        "tests/h.cmake": "cmake_minimum_required(VERSION 3.25)\n",
        "tests/e.cmake": (
            "execute_process(COMMAND a TIMEOUT 40)\nexecute_process(COMMAND a TIMEOUT 300)\nif(seconds GREATER 3)\n"
        ),
        "tests/f.cpp": (
            "EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);\nEXPECT_LT(Clock::now() - start,"
            " 5s);\nEXPECT_LT(clock.ticks(), 5);\nEXPECT_LE(sent, 5);\nEXPECT_EQ(world->timeout(), 20s);\n"
        ),
        "tests/g.c": "EXPECT(MPI_Wtime() - begin < 10);\nEXPECT(seconds <= 1);\nEXPECT(second == 1);\n",
        "tests/bench/bench_a.cpp": "std::filesystem::temp_directory_path();\n",
        "tests/support/folder.h": "class Folder;\n",
    }
    wanted = [
        "tests/e.cmake",
        "tests/a.cpp:1",
        "tests/a.cpp:2",
        "tests/a.cpp:4",
        "tests/a.cpp:7",
        "tests/b.lua:1",
        "tests/b.lua:3",
        "tests/c.sh:1",
        "tests/c.sh:4",
    ]
    wanted += ["tests/e.cmake:3", "tests/f.cpp:1", "tests/f.cpp:2", "tests/g.c:1", "tests/g.c:2"]
    wanted += [
        "cmake/MoonhaloTests.cmake:1",
        "cmake/MoonhaloTests.cmake:3",
        "cmake/MoonhaloTests.cmake:5",
        "tests/c.sh:2",
        "tests/d.py:1",
        "tests/d.py:4",
    ]
    wanted += ["tests/e.cmake:1", "tests/support/folder.h"]
    found = problems_in(files, check)
    assert found == wanted, f"self-test: found {found}"


if __name__ == "__main__":
    main(check, self_test, "tests depend on themselves alone")
