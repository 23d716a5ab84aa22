#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tries first.sh without a GPU, in a bundle of programs that are scripts: one that crashes, one that hangs, a disk that
is full, another PyTorch, tests that are all skipped.  usage: check_first.py SOURCE_FOLDER"""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(sys.argv.pop(1)) / "tests/gpu"
GOOD = "echo 'devices    cpu, cuda (1)'; echo equal"
# Lists two suites, and runs them as ONE and TWO say.
TESTS = """case "$*" in
  *list_tests*) printf 'One.\\n  A\\nTwo.\\n  B\\n' ;;
  *One*) {one} ;;
  *) {two} ;;
esac"""
PASSES = r"printf '[ RUN      ] X.A\n[==========] 1 test from 1 test suite ran. (1 ms total)\n[  PASSED  ] 1 test.\n'"
SKIPS = (
    r"printf '[ RUN      ] X.A\nSkipped\nno CUDA device was found\n[  SKIPPED ] X.A (0 ms)\n"
    r"[==========] 1 test from 1 test suite ran. (1 ms total)\n[  PASSED  ] 0 tests.\n'"
)
CRASHES = r"printf '[ RUN      ] X.Crash\n'; kill -SEGV $$"


class First(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.bundle = self.folder / "a bundle"
        for name in ("bin", "tables", "site/torch", "site/nvidia/cu13/lib"):
            (self.bundle / name).mkdir(parents=True)
        for name in ("first.sh", "first.py", "checks.py"):
            shutil.copy(SOURCE / name, self.bundle / name)
        for name in ("device_table.txt", "cuda_table.txt"):
            shutil.copy(SOURCE.parent / "support" / name, self.bundle / "tables" / name)
        (self.bundle / "site/torch/__init__.py").touch()
        (self.bundle / "site/torch/version.py").write_text("__version__ = '2.11.0+cu130'\n")
        (self.bundle / "site/nvidia/cu13/lib/libcudart.so.13").touch()
        (self.bundle / "manifest.json").write_text(
            json.dumps({"torch": "2.11.0+cu130", "commit": "abc", "date": "2026-01-01"})
        )
        self.program("moonhalo", GOOD)
        for name in ("test_gpu", "test_engine"):
            self.program(name, TESTS.format(one=PASSES, two=PASSES))

    def program(self, name, text):
        path = self.bundle / "bin" / name
        path.write_text("#!/bin/sh\n" + text + "\n")
        path.chmod(0o755)

    def run_first(self, *arguments, **more):
        environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(self.bundle / "site")}
        done = subprocess.run(
            [str(self.bundle / "first.sh"), "--output", str(self.folder / "out"), *arguments],
            capture_output=True,
            text=True,
            env=environment,
            **more,
        )
        self.printed = done.stdout + done.stderr
        lines = self.folder / "out/first.jsonl"
        # A line that a full disk cut short has no end.
        self.records = (
            [json.loads(line) for line in lines.read_text().splitlines() if line.endswith("}")]
            if lines.exists()
            else []
        )
        return done.returncode

    def status(self, check):
        found = [record for record in self.records if record["check"] == check]
        self.assertEqual(len(found), 1, f"{check}: {self.records} {self.printed}")
        return found[0]["status"]

    def test_all_good(self):
        self.assertEqual(self.run_first("--device", "cpu", "programs", "kernels", "engine"), 0, self.printed)
        self.assertEqual({record["status"] for record in self.records}, {"passed"})
        self.assertIn("==== kernels: test_gpu One: passed", (self.folder / "out/outputs.log").read_text())

    def test_a_crash_ends_its_own_suite_alone(self):
        self.program("test_gpu", TESTS.format(one=CRASHES, two=PASSES))
        self.assertEqual(self.run_first("--device", "cpu", "kernels", "engine"), 1)
        self.assertEqual(
            [self.status(check) for check in ("test_gpu One", "test_gpu Two", "test_engine One")],
            ["crashed", "passed", "passed"],
        )
        self.assertIn("X.Crash", self.printed)

    def test_a_hang_ends_with_the_time_of_all_stages(self):
        self.program("test_gpu", TESTS.format(one="printf '[ RUN      ] X.Hang\\n'; sleep 1000", two=PASSES))
        self.assertEqual(self.run_first("--device", "cpu", "--jobs", "2", "--seconds", "6", "kernels", "engine"), 1)
        self.assertEqual(
            [self.status(check) for check in ("test_gpu One", "test_gpu Two", "(all)")],
            ["timed out", "passed", "left out"],
        )
        self.assertIn("X.Hang", self.printed)

    def test_a_full_disk_keeps_nothing_from_running(self):
        # A limit on the size of files: writes fail as they do on a full disk.
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))  # noqa: E731
        self.assertEqual(self.run_first("--device", "cpu", "programs", "kernels", preexec_fn=limit), 0, self.printed)
        self.assertIn("cannot be written", self.printed)
        self.assertIn("kernels      2 passed", self.printed)

    def test_skipped_tests_are_no_success(self):
        self.program("test_gpu", TESTS.format(one=SKIPS, two=SKIPS))
        self.assertEqual(self.run_first("--device", "cpu", "kernels"), 1)
        self.assertIn("all 1 tests were skipped: no CUDA device was found", self.printed)

    def test_a_program_without_the_device_is_red(self):
        self.program("moonhalo", "echo 'devices    cpu'; echo equal")
        self.assertEqual(self.run_first("programs"), 1)
        self.assertEqual(self.status("moonhalo info"), "failed")

    def test_another_pytorch(self):
        (self.bundle / "site/torch/version.py").write_text("__version__ = '2.12.0+cu130'\n")
        self.assertEqual(self.run_first("programs"), 1)
        self.assertIn("have  torch 2.12.0+cu130 in", self.printed)
        self.assertIn("fix   set PYTHON to a Python with torch 2.11.0+cu130", self.printed)

    def test_an_unknown_stage(self):
        self.assertEqual(self.run_first("speed"), 2)
        self.assertIn("no stage 'speed'; there are quick, programs,", self.printed)

    def test_limits(self):
        sys.path.insert(0, str(SOURCE))
        sys.dont_write_bytecode = True
        import first

        limits = {name: limit for name, (_, limit, _, _) in first.STAGES.items()}
        self.assertLessEqual(
            sum(limit for name, limit in limits.items() if name not in [*first.NEEDED, *first.ON_REQUEST]), first.TOTAL
        )
        self.assertLessEqual(first.TOTAL, 7 * 60)
        self.assertLessEqual(sum(limits[name] for name in first.QUICK), 3 * 60)


unittest.main(argv=sys.argv[:1])
