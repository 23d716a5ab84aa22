# SPDX-License-Identifier: Apache-2.0
"""Imported before what is compiled: an error for another PyTorch."""

import torch as _torch

from ._built_for import TORCH as _built_for  # by CMake
from ._same_torch import check as _check

_check(_torch.__version__, _torch.__path__[0], _built_for)
