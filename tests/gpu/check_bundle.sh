#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Unpacks a bundle in a root that holds glibc, GCC's run-time libraries, a shell, Python and the wheels of PyTorch alone, and starts what can
# start there without a GPU. Needs a right to mount: root, or user namespaces.
# usage: check_bundle.sh ARCHIVE.tar.xz TORCH_FOLDER
set -euo pipefail
archive=$(realpath "${1:?usage: check_bundle.sh ARCHIVE TORCH_FOLDER}") torch=$(realpath "${2:?usage: check_bundle.sh ARCHIVE TORCH_FOLDER}")

if [[ -z ${MOONHALO_IN_NAMESPACE:-} ]]; then
  export MOONHALO_IN_NAMESPACE=1
  if ((EUID == 0)); then exec unshare --mount "$0" "$archive" "$torch"; fi
  exec unshare --mount --map-root-user "$0" "$archive" "$torch"
fi

root=$(mktemp -d)
mount -t tmpfs none "$root"
cd "$root"
mkdir -p bin lib64 lib/python usr/bin opt/site tmp dev proc home work
system='^(lib(c|m|dl|rt|pthread|util|resolv|gcc_s|stdc\+\+)\.so|ld-linux)'
# take FILE FOLDER: the file's libraries, those of the system to lib and others to FOLDER
take() {
  local name path
  while read -r name path; do
    if [[ $name =~ $system ]]; then cp -Ln "$path" lib/; else cp -Ln "$path" "$2/"; fi
  done < <(ldd "$1" | awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }')
}
python=$(/usr/bin/python3 -c 'import sys; print(sys.base_prefix + "/bin/python%d.%d" % sys.version_info[:2])')
version=$(basename "$python")
for program in sh dirname; do
  cp -L "$(command -v "$program")" bin/
  take "$(command -v "$program")" lib
done
cp -L /lib64/ld-linux-x86-64.so.2 lib64/
cp -L "$python" usr/bin/python3.real
take "$python" lib/python
cp -L "$(gcc -print-file-name=libstdc++.so.6)" "$(gcc -print-file-name=libgcc_s.so.1)" lib/
for name in m dl rt pthread util resolv; do cp -Ln /lib/x86_64-linux-gnu/lib$name.so.? lib/; done
mkdir -p "usr/lib/$version"
mount --bind "/usr/lib/$version" "usr/lib/$version"
for module in "/usr/lib/$version"/lib-dynload/_{json,struct,posixsubprocess,queue,bz2,lzma}*.so; do
  [[ -e $module ]] && take "$module" lib/python
done
# Python's own libraries must not be found by the programs of the bundle.
printf '#!/bin/sh\nLD_LIBRARY_PATH=/lib/python exec /usr/bin/python3.real "$@"\n' >bin/python3
chmod +x bin/python3
mkdir opt/site/torch opt/site/nvidia
mount --bind "$torch" opt/site/torch
mount --bind "$torch/../nvidia" opt/site/nvidia
mount --bind /proc proc
touch dev/null && mount --bind /dev/null dev/null
touch dev/urandom && mount --bind /dev/urandom dev/urandom
mkdir dev/shm && mount -t tmpfs none dev/shm
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
