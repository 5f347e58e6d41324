#!/bin/bash
# A job that starts its program again until it is done.  The state stays in the memory of
# the nodes, under the number of this job; a spare takes the place of a node that is lost.
#
#   sbatch examples/keep_going.sh python examples/keep_going.py 2000000
#
#SBATCH --nodes=5 --ntasks-per-node=2  # one of the nodes is the spare
#SBATCH --no-kill                      # the job outlives its nodes ...
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@300            # ... and is told five minutes before its time is up
#SBATCH --requeue --open-mode=append

each=${SLURM_NTASKS_PER_NODE%%(*}
working=$((SLURM_JOB_NUM_NODES - 1))
export SLURM_PMIX_FENCE=ring # other fences of SLURM 22.05 are not sound on more than two nodes

trap 'ending=yes; scancel --signal=USR1 "$SLURM_JOB_ID"' USR1 # to the steps: save, end with 75

answers() { timeout "${ANSWER_S:-10}" srun --overlap --quiet -N1 -n1 -w "$1" true 2>/dev/null; }

find_nodes() { # SLURM_JOB_NODELIST still names those that are lost, and squeue may for a while
    nodes=()
    for node in $(scontrol show hostnames "$(squeue -h -j "$SLURM_JOB_ID" -o %N)"); do
        [ ${#nodes[@]} = $working ] || ! answers "$node" || nodes+=("$node")
    done
    [ ${#nodes[@]} = $working ]
}

launch() {
    # --overlap: of a step that was cut off SLURM may think for ever that it holds CPUs
    srun --overlap --kill-on-bad-exit=1 --mpi="${MPI:-pmix}" -N$working -n$((working * each)) \
        -w "$(IFS=, && echo "${nodes[*]}")" "$@" &
    local step=$!
    wait $step
    status=$?
    while kill -0 $step 2>/dev/null; do # it was a signal that ended the wait
        wait $step
        status=$?
    done
}

for attempt in {1..20}; do
    find_nodes || break
    launch "$@"
    echo "attempt $attempt on ${nodes[*]} has ended with $status"
    case $status in
    0 | 1 | 2) exit $status ;; # done, or an error that would come again
    esac
    [ -z "$ending" ] || break
done
[ "$attempt" -lt 20 ] || exit "$status"
# Too few nodes, or too little time.  Slots may be gone when the job starts again: persist=... for that.
scontrol requeue "$SLURM_JOB_ID"
