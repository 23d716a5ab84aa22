#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Unpacks a bundle in a root that holds glibc, GCC's run-time libraries, a shell, Python and the wheels of PyTorch alone, and starts what can
# start there without a GPU. Needs a right to mount: root, or user namespaces.
# usage: check_bundle.sh ARCHIVE.tar.xz TORCH_FOLDER
set -euo pipefail
archive=$(realpath "${1:?usage: check_bundle.sh ARCHIVE TORCH_FOLDER}") torch=$(realpath "${2:?usage: check_bundle.sh ARCHIVE TORCH_FOLDER}")

source "$(dirname "${BASH_SOURCE[0]}")/../support/empty_root.sh"
in_own_mounts "$0" "$archive" "$torch"

python=$(/usr/bin/python3 -c 'import sys; print(sys.base_prefix + "/bin/python%d.%d" % sys.version_info[:2])')
begin_root "$(mktemp -d)" sh dirname
mkdir -p lib/python opt/site work
cp -L "$python" usr/bin/python3.real
take_python "$python" lib/python
# Python's own libraries must not be found by the programs of the bundle.
printf '#!/bin/sh\nLD_LIBRARY_PATH=/lib/python exec /usr/bin/python3.real "$@"\n' >bin/python3
chmod +x bin/python3
mkdir opt/site/torch opt/site/nvidia
mount --bind "$torch" opt/site/torch
mount --bind "$torch/../nvidia" opt/site/nvidia
tar -xJf "$archive" -C work

inside() { chroot . /bin/sh -c "export PATH=/bin PYTHONPATH=/opt/site PYTHONHOME=/usr HOME=/home; $1"; }
echo "== programs and examples"
inside "/work/moonhalo-gpu/first.sh --device cpu --output /results programs references examples"
echo "== every test program lists its tests"
libraries=/opt/site/torch/lib:/opt/site/nvidia/cu13/lib
for program in test_gpu test_engine test_ops; do
  count=$(inside "LD_LIBRARY_PATH=$libraries /work/moonhalo-gpu/bin/$program --gtest_list_tests" | grep -c '^  ')
  echo "$program: $count tests"
  ((count > 3))
done
echo "== without a GPU, cuda is a clear error"
if inside "/work/moonhalo-gpu/first.sh --output /results2 programs" >out3 2>&1; then cat out3; exit 1; fi
grep -q "no CUDA device" out3 || { cat out3; exit 1; }
echo "bundle: all right in an empty root"
