# SPDX-License-Identifier: Apache-2.0
"""For tests that are Python programs: the environment that `./dev test` makes, and checks that are counted."""

import importlib.util
import os
import subprocess
import sys

LIMIT_S = 1200  # ends what hangs, also on a busy machine
failures = 0


def lacking(what):
    required = bool(os.environ.get("MOONHALO_REQUIRE_TEST_PACKAGES"))
    print("FAILED:" if required else "skipped:", what)
    sys.exit(1 if required else 77)


def enter(python, *packages):
    """Goes on in the environment of `python`. Where it or one of the packages is missing, ends with status 77
    (skipped), or 1 under MOONHALO_REQUIRE_TEST_PACKAGES."""
    if not os.path.exists(python):
        lacking(f"there is no {python}; `./dev test` makes it")
    if os.path.realpath(sys.prefix) != os.path.realpath(os.path.dirname(os.path.dirname(python))):
        sys.exit(subprocess.run([python, *sys.argv]).returncode)
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        lacking(f"{python} lacks {', '.join(missing)}; `./dev test` installs it")


def check(what, good):
    global failures
    if not good:
        failures += 1
        print("FAILED:", what)


def run(what, *command, limit_s=LIMIT_S, **variables):
    """What a program prints, whose status must be 0; `variables` are of its environment."""
    done = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=limit_s,
        env={**os.environ, **variables},
    )
    check(f"{what}: status {done.returncode}\n{done.stdout}", done.returncode == 0)
    return done.stdout


def finish():
    print("failed" if failures else "all well")
    sys.exit(failures > 0)
