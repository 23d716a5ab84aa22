# SPDX-License-Identifier: Apache-2.0
"""An error for another PyTorch than the package was built for, whose functions compiled code would not find. The
program reads this file alone."""


def _release(version):
    """ "2.11.0" of "2.11.0+cpu": builds for other devices have the same functions."""
    return version.split("+", 1)[0]


def check(version, folder, built_for):
    if _release(version) != _release(built_for):
        raise ImportError(
            f"moonhalo: this package was built for PyTorch {_release(built_for)}\n"
            f"  have  PyTorch {version} in {folder}\n"
            f"  fix   pip install torch=={_release(built_for)}, or build the package for yours (docs/python.md)"
        )
