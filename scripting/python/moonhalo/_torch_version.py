# SPDX-License-Identifier: Apache-2.0
"""An error for another PyTorch than the package was built for, whose functions the compiled module would not find."""

import torch as _torch

from ._built_for import TORCH as _built_for  # by CMake


def _release(version):
    """ "2.11.0" of "2.11.0+cpu": builds for other devices have the same functions."""
    return version.split("+", 1)[0]


if _release(_torch.__version__) != _release(_built_for):
    raise ImportError(
        f"moonhalo: this package was built for PyTorch {_release(_built_for)}\n"
        f"  have  PyTorch {_torch.__version__} in {_torch.__path__[0]}\n"
        f"  fix   pip install torch=={_release(_built_for)}, or build the package for yours (docs/python.md)"
    )
