#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What a GPU shows of Moonhalo in some minutes, from an unpacked bundle (./dev gpu bundle):
#   first.sh [--device cuda:0] [--output FOLDER] [quick | STAGE...]     first.sh --help lists the stages
# PYTHON names the Python whose PyTorch brings LibTorch, CUDA and NCCL; python3 if unset.
here=$(cd "$(dirname "$0")" && pwd)
exec "${PYTHON:-python3}" "$here/first.py" "$@"
