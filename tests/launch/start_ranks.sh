#!/usr/bin/env bash
# Starts RANKS processes of COMMAND as a launcher does: start_ranks.sh LAUNCHER RANKS COMMAND...
#   torchrun   the program of that name, which TORCHRUN gives
#   variables  with the variables of torchrun alone: rank 0 serves the store
#   slurm      with those of a step of Slurm
#   mpich      MPICH's mpiexec, whose ranks meet over TCP, since the program is built with another MPI
# START (a number): only so many of the ranks are started. Ends with the first status that is not 0; its standard output and
# error are those of the ranks.
set -euo pipefail
launcher=$1 ranks=$2
shift 2

if [[ $launcher == torchrun ]]; then
  exec "$TORCHRUN" --no-python --standalone --nproc-per-node "$ranks" -- "$@"
fi

# A port of this run alone.
if [[ -z ${HELD_PORT:-} ]]; then
  exec python3 "$(dirname "${BASH_SOURCE[0]}")/hold_port.py" "${BASH_SOURCE[0]}" "$launcher" "$ranks" "$@"
fi
port=$HELD_PORT
unset HELD_PORT

if [[ $launcher == mpich ]]; then
  exec mpiexec.mpich -n "$ranks" env OMP_NUM_THREADS=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$@" --backend tcp
fi

pids=()
for ((rank = 0; rank < ${START:-$ranks}; ++rank)); do
  if [[ $launcher == slurm ]]; then
    # The port is 20000 and 31 times the job, modulo 10000: 3871 times 31 is 1 more than a multiple of that.
    job=$(((port - 20000) * 3871 % 10000))
    variables=(SLURM_PROCID=$rank SLURM_NTASKS=$ranks SLURM_STEP_ID=0 SLURM_JOB_ID=$job SLURM_STEP_NODELIST=localhost
      SLURM_LOCALID=$rank)
  else
    variables=(RANK=$rank WORLD_SIZE=$ranks LOCAL_RANK=$rank LOCAL_WORLD_SIZE=$ranks MASTER_ADDR=127.0.0.1 MASTER_PORT=$port)
  fi
  env OMP_NUM_THREADS=1 "${variables[@]}" "$@" &
  pids+=($!)
done
status=0
for pid in "${pids[@]}"; do
  wait "$pid" || { ended=$?; ((status)) || status=$ended; }
done
exit "$status"
