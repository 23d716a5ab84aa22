#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs a wheel of `./dev wheel` by pip in a root that holds glibc, GCC's run-time libraries, Python and the environment
# of PyTorch alone, and runs it there: the program, two ranks by torchrun, by mpirun with Open MPI beside it, and by mpirun
# where the wheel does not find the library of MPI. Needs a right to mount: root, or user namespaces.
# usage: check_wheel_alone.sh WHEEL_OR_BUILD_FOLDER PYTHON_OF_PYTORCH
set -euo pipefail
wheel=$(realpath "${1:?usage: check_wheel_alone.sh WHEEL PYTHON}")
environment=$(realpath "$(dirname "${2:?usage: check_wheel_alone.sh WHEEL PYTHON}")/..") python=$2
here=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
source "$here/../support/empty_root.sh"
fail() { printf 'FAILED: %s\n' "$*"; exit 1; }
lacking() {
  [[ -z ${MOONHALO_REQUIRE_TEST_PACKAGES:-} ]] || fail "$*"
  echo "skipped: $*"
  exit 77
}
may_mount || lacking "no right to mount"
if [[ -d $wheel ]]; then
  work=$wheel/wheel/made
  rm -rf "$work"
  mkdir -p "$work"
  MOONHALO_BUILD=$wheel "$python" -B "$here/../../scripting/python/build_wheel.py" "$work"
  wheel=$(echo "$work"/moonhalo-*.whl)
fi
python=$(realpath --no-symlinks "$python")
in_own_mounts "$here/$(basename "$0")" "$wheel" "$python"
(($(stat -c %s "$wheel") < 30000000)) || fail "the wheel has $(stat -c %s "$wheel") bytes"

begin_root "$(mktemp -d)" sh env
base=$(realpath "$python")
mkdir -p ".$(dirname "$base")" work layer
cp -L "$base" ".$base"
take_python "$base" lib
ln -sfn "$base" usr/bin/python3
cp /etc/passwd /etc/hosts etc/
cp "$here/wheel_step.py" "$here/wheel_run.lua" "$wheel" work/
# layered FOLDER PLACE: a layer of its own over the folder; what is written there goes with the root
layered() {
  mkdir -p ".$2" "layer/$2"/{new,work}
  mount -t overlay overlay -o "lowerdir=$1,upperdir=layer/$2/new,workdir=layer/$2/work" ".$2"
}
layered "$environment" "$environment"
variables=(PATH="$environment/bin:/bin:/usr/bin" HOME=/home OMP_NUM_THREADS=1 TMPDIR=/home)
# What other tests have compiled of PyTorch. It is compiled anew where it does not fit.
if [[ -d ${PYTHONPYCACHEPREFIX:-} ]]; then
  layered "$PYTHONPYCACHEPREFIX" /python_code
  variables+=(PYTHONPYCACHEPREFIX=/python_code)
fi

inside() { chroot . /bin/env -i "${variables[@]}" "$@"; }
# says TEXT COMMAND...: the command succeeds, and both ranks print the text
says() {
  local text=$1 said
  shift
  said=$(inside "$@" 2>&1) || fail "$* ended with status $?"$'\n'"$said"
  [[ $(grep -o "$text" <<<"$said" | wc -l) == "${ranks:-2}" ]] || fail "$* does not say '$text' on each rank"$'\n'"$said"
}

TIMEFORMAT="from pip install to a trained step on 2 ranks: %R s"
time {
  inside "$environment/bin/python" -m pip install -q --disable-pip-version-check --no-index "/work/$(basename "$wheel")" ||
    fail "pip install"
  says "all right over tcp" torchrun --standalone --nproc-per-node 2 /work/wheel_step.py tcp /work
}
ranks=1 says "backends   threads tcp fake" moonhalo info
says "of 2 trained" moonhalo run --ranks 2 /work/wheel_run.lua
says "of 2 trained" torchrun --no-python --standalone --nproc-per-node 2 -- moonhalo run /work/wheel_run.lua
[[ -x $(command -v mpirun) ]] || lacking "no mpirun"

# Open MPI, as a machine has it: its launcher, its library and their parts.
libraries=/usr/lib/x86_64-linux-gnu
mkdir -p ".$libraries"/{openmpi,pmix2} usr/share/openmpi etc/openmpi
for folder in "$libraries/openmpi" "$libraries/pmix2" /usr/share/openmpi /etc/openmpi; do
  [[ ! -d $folder ]] || mount --bind "$folder" ".$folder"
done
cp -L "$(command -v mpirun)" usr/bin/
for part in "$(command -v mpirun)" "$libraries"/openmpi/lib/openmpi3/*.so "$libraries"/pmix2/lib/*.so "$libraries"/pmix2/lib/pmix/*.so; do
  [[ ! -e $part ]] || take "$part" lib
done
mpirun=(env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_plm_rsh_agent=env mpirun --oversubscribe -n 2)
cp -Ln "$libraries/libmpi.so.40" lib/
ranks=1 says "backends   threads tcp mpi fake" moonhalo info
says "all right over mpi" "${mpirun[@]}" python /work/wheel_step.py mpi /work
says "of 2 trained" "${mpirun[@]}" moonhalo run /work/wheel_run.lua
rm -r lib/libmpi.so.* work/tcp*
says "all right over tcp" "${mpirun[@]}" python /work/wheel_step.py tcp /work
says "tcp, store at 127.0.0.1:.*no MPI: libmpi.so.40" "${mpirun[@]}" moonhalo env
sed -i 's/".*"/"1.2.3"/' ".$environment"/lib/python3*/site-packages/moonhalo/_built_for.py
said=$(inside moonhalo info 2>&1) && fail "another PyTorch is taken"
[[ $said == *"built for PyTorch 1.2.3"* ]] || fail "another PyTorch: $said"
echo "wheel: all right in an empty root"
