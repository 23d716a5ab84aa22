#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs ctest, and once more what failed by an expectation (.ci/run).

A crash, a time-out, a sanitizer's report and a number that differs from plain tensors' are found once in a while, too,
and are no accident: they get no second try, nor does a test that does not say what it expected. What needed a second
try is named at the end, and its first output is kept in FOLDER: such a test depends on the time or on others, and is to
be mended.

usage: second_tries.py FOLDER ctest ARGUMENT...
       second_tries.py --self-test SOURCE_FOLDER"""

import re
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree
from pathlib import Path

# What tests print, and the files that print it.
EXPECTATIONS = {
    r": Failure$": "GoogleTest",
    r"^FAILED ": "scripting/program/command_test.cpp",
    r"^FAILED: ": "tests/support/own_python.py",
    r"^CMake Error at ": "CMake",
    r" not so: ": "tests/embed/host.c",
    r"not as it should be": "tests/launch/parting.sh",
    r"^Required regular expression not found": "CTest",
}
NUMBERS = {
    r"differs from plain": "tests/support/oracle.cpp",
    r"elements differ": "scripting/lua/testing.lua",
    r"depend on the number of ranks": "tests/examples/run_example.cmake",
    r"\b(?:equal|allclose|isclose)\(": "GoogleTest",
    r"^The difference between .* exceeds ": "GoogleTest",
}
CRASHES = {
    r"[Ss]egmentation fault|SIGSEGV|SIGABRT|SIGBUS|SIGFPE|SIGILL|core dumped": "signals",
    r"(?:signal|SIGNAL:) (?:4|6|7|8|11)\b": "signals",
    r"terminate called|stack smashing|corrupted|double free": "the C and C++ libraries",
}
SANITIZERS = {r"Sanitizer\b|: runtime error: ": "sanitizers"}
HANGS = {
    r"ranks still run: ": "tests/support/ranks.cpp",
    r"timed out after (?:[6-9]\d|\d{3,})(?:\.\d+)? s": "a time limit that no test waits for",
}
REFUSED = (
    ("a crash", CRASHES),
    ("a sanitizer's report", SANITIZERS),
    ("a time-out", HANGS),
    ("a number that differs", NUMBERS),
)
OUTPUT_LIMIT = 50_000_000  # bytes of a test's output that ctest keeps; what is cut off cannot be judged
SUMMARY = re.compile(r"(\d+)% tests passed, (\d+) tests failed out of (\d+)")
# Below it, a line of each test that failed: its name, and how it ended.
FAILED = re.compile(r"^\t *\d+ - (.+?) \(([\w ]+)\)(?:\s.*)?$")


def said(output, patterns):
    return any(re.search(pattern, output, re.MULTILINE) for pattern in patterns)


def why_not_again(status, output):
    """Why a test that failed gets no second try; "" where it does. `status` is ctest's word for how it ended."""
    if status != "Failed":
        return f"ctest says {status}"
    for name, patterns in REFUSED:
        if said(output, patterns):
            return name
    if len(output) >= OUTPUT_LIMIT:
        return "its output is too long to judge"
    return "" if said(output, EXPECTATIONS) else "it does not say what it expected"


def outputs(report):
    """name -> what the test printed, and what ctest has against it."""
    found = {}
    for case in xml.etree.ElementTree.parse(report).getroot().iter("testcase"):
        failure = case.find("failure")
        found[case.get("name")] = (
            (case.findtext("system-out") or "") + "\n" + (failure.get("message") if failure is not None else "")
        )
    return found


def run(command):
    """Runs ctest and shows what it prints. Returns its status, its summary, and how each test that failed has ended."""
    summary, failed = None, {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace") as process:
        for line in process.stdout:
            print(line, end="", flush=True)
            summary = SUMMARY.search(line) or summary
            one = FAILED.match(line) if summary else None
            if one and one[2] not in ("Skipped", "Disabled"):
                failed[one[1]] = one[2]
    return process.returncode, summary, failed


def only(names):
    return "^(" + "|".join(re.sub(r"([][.^$*+?()|\\])", r"\\\1", name) for name in names) + ")$"


def main(folder, command):
    begin = time.monotonic()
    folder = Path(folder).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    report = folder / "first.xml"
    status, summary, failed = run(
        [*command, "--test-output-size-failed", str(OUTPUT_LIMIT), "--output-junit", str(report)]
    )
    if not failed or not report.is_file():
        return status
    printed, reasons = outputs(report), {}
    for name, how in failed.items():
        output = printed.get(name, "")
        reasons[name] = why_not_again(how, output)
        (folder / (re.sub(r"[^\w.-]", "_", name) + ".log")).write_text(output, encoding="utf-8")
    left = failed
    if not any(reasons.values()):
        print(f"\nTried again, because they failed by an expectation: {', '.join(failed)}", flush=True)
        status, _, left = run([*command, "-R", only(failed), "-j1"])
        print("\nA second try was needed by tests that depend on the time or on others; correct them:")
    else:
        print("\nNo second try:")
    for name, reason in reasons.items():
        print(f"  {name}: {reason or ('failed twice' if name in left else 'failed once')}")
    print(f"Their first output is in {folder}")
    total = int(summary[3])
    print(
        f"\n{min(99, 100 * (total - len(left)) // total) if left else 100}% tests passed, {len(left)} tests failed out"
        f" of {total}"
    )
    print(f"\nTotal Test time (real) = {time.monotonic() - begin:.2f} sec")
    return status


def self_test(source):
    """Strings of failed tests, and ctest itself on tests that fail in every way."""
    gtest = "a.cpp:3: Failure\nExpected equality of these values:\n  a\n    Which is: 2\n"
    for status, output, again in (
        ("Failed", gtest, True),
        ("Failed", "FAILED test_a (2 ms)\n    x.lua:3: values differ\n", True),
        ("Failed", "FAILED: a file is missing\n", True),
        ("Failed", 'CMake Error at a.cmake:3 (message):\n  nothing says "x"\n', True),
        ("Failed", "rank 1, line 7: not so: calls == 3\n", True),
        ("Failed", gtest + "rank 2 exited on signal 9 (Killed)\nbarrier timed out after 2 s on rank 0\n", True),
        ("Failed", "ok learn()\nRequired regular expression not found. Regex=[x]", True),
        ("Failed", "", False),
        ("Failed", "cannot open shared object\n", False),
        ("SEGFAULT", gtest, False),
        ("Timeout", gtest, False),
        ("Failed", gtest + "mpirun noticed that process rank 1 exited on signal 11 (Segmentation fault).\n", False),
        ("Failed", gtest + "terminate called after throwing\n", False),
        ("Failed", gtest + "==3==ERROR: AddressSanitizer: heap-use-after-free\n", False),
        ("Failed", gtest + "a.cpp:3:4: runtime error: signed integer overflow\n", False),
        ("Failed", gtest + "all_reduce timed out after 60 s on rank 0\n", False),
        ("Failed", gtest + "on_ranks: after 300000 ms these of 3 ranks still run: 1\n", False),
        ("Failed", gtest + "rank 1 of mesh [3] differs from plain tensors:\n", False),
        ("Failed", "FAILED test_a (2 ms)\n    x.lua:3: 1 of 1 elements differ, by at most 1.0\n", False),
        ("Failed", "CMake Error at a.cmake:3 (message):\n  the losses depend on the number of ranks\n", False),
        ("Failed", "a.cpp:3: Failure\nValue of: at::equal(a, b)\n  Actual: false\n", False),
        ("Failed", "a.cpp:3: Failure\nThe difference between a and 1 is 0.5, which exceeds 0.1, where\n", False),
    ):
        assert (why_not_again(status, output) == "") == again, (status, output, why_not_again(status, output))
    for patterns in (EXPECTATIONS, NUMBERS, HANGS):
        for pattern, place in patterns.items():
            if "/" in place:
                words = max(re.findall(r"[A-Za-z ]{4,}", pattern), key=len).strip()
                assert words in (Path(source) / place).read_text(encoding="utf-8"), (
                    f"{place} does not print '{words}' any more"
                )
    with tempfile.TemporaryDirectory() as folder:
        ends_of_ctest(Path(folder))
    print("second tries are given as they should be")


def scripts_of_tests(work):
    """Name of a test -> what it does."""
    once = f"test -e {work}/MARK && exit 0; touch {work}/MARK; echo 'a.cpp:3: Failure'; exit 1"
    return {
        "fine": "true",
        "suite.once/a+b": once.replace("MARK", "once"),
        "twice": "echo 'a.cpp:3: Failure'; exit 1",
        "number": once.replace("MARK", "number").replace("Failure", "Failure; echo differs from plain"),
        "crash": once.replace("MARK", "crash").replace("exit 1", "kill -SEGV $$"),
        "slow": once.replace("MARK", "slow").replace("exit 1", "sleep 600"),
    }


def write_tests(work, names):
    scripts = scripts_of_tests(work)
    lines = []
    for name in names:
        (work / "script").mkdir(exist_ok=True)
        path = work / "script" / re.sub(r"\W", "_", name)
        path.write_text(scripts[name], encoding="utf-8")
        lines.append(
            f'add_test("{name}" sh "{path}")\nset_tests_properties("{name}" PROPERTIES TIMEOUT'
            f" {1 if name == 'slow' else 60})"
        )
    (work / "CTestTestfile.cmake").write_text("\n".join(lines), encoding="utf-8")


def expect_end(work, names, status, summaries, kept, text=""):
    """Runs the tests `names`. Expected are a status of 0 or another, CTest's summaries, the outputs that are kept, and
    a part of what is printed."""
    write_tests(work, names)
    done = subprocess.run(
        [sys.executable, __file__, str(work / "log"), "ctest", "--test-dir", str(work), "-j4", "-R", "."],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    found = [match[0] for match in SUMMARY.finditer(done.stdout)]
    logs = sorted(path.stem for path in (work / "log").glob("*.log"))
    assert (done.returncode == 0) == (status == 0) and found == summaries and logs == kept and text in done.stdout, (
        names,
        done.returncode,
        found,
        logs,
        done.stdout,
    )


def ends_of_ctest(work):
    expect_end(work, ["fine"], 0, ["100% tests passed, 0 tests failed out of 1"], [])
    expect_end(
        work,
        ["fine", "suite.once/a+b"],
        0,
        [
            "50% tests passed, 1 tests failed out of 2",
            "100% tests passed, 0 tests failed out of 1",
            "100% tests passed, 0 tests failed out of 2",
        ],
        ["suite.once_a_b"],
        "  suite.once/a+b: failed once\n",
    )
    expect_end(
        work,
        ["fine", "twice"],
        1,
        [
            "50% tests passed, 1 tests failed out of 2",
            "0% tests passed, 1 tests failed out of 1",
            "50% tests passed, 1 tests failed out of 2",
        ],
        ["twice"],
        "  twice: failed twice\n",
    )
    for name, reason in (
        ("number", "a number that differs"),
        ("crash", "ctest says SEGFAULT"),
        ("slow", "ctest says Timeout"),
    ):
        (work / "once").unlink(missing_ok=True)
        expect_end(
            work,
            ["fine", name, "suite.once/a+b"],
            1,
            ["33% tests passed, 2 tests failed out of 3"] * 2,
            sorted([name, "suite.once_a_b"]),
            f"  {name}: {reason}\n",
        )


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(self_test(sys.argv[2]) if sys.argv[1] == "--self-test" else main(sys.argv[1], sys.argv[2:]))
