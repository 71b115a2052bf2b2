#!/usr/bin/env bash
# The whole GPU suite in groups side by side, then the faults alone: they watch the GPU's memory. On 16 cores and one GPU
# this takes nine minutes instead of an hour. COURSE_LIB_NCCL may name the library that lets ranks share a GPU.
# Usage: tests/gpu/side_by_side.sh FOLDER-FOR-LOGS
set -u
logs=${1:?a folder for logs}
mkdir -p "$logs"
export PYTHONPATH=$PWD PYTHONUNBUFFERED=1
shared="python3 -m course_lib.launcher.jobs.shared_gpu" # and an MPS server
tests="timeout 500 python3 -m pytest -q -p no:cacheprovider --tb=short --durations=4"
same=tests/gpu/test_strategies.py train=tests/gpu/test_train.py
began=$SECONDS
# These share a server, and so the GPU.
$shared bash <<SAME &
$tests $same -k "test_every_schedule and nccl" >$logs/schedules.log 2>&1 &
$tests $same -k "test_every_mesh and nccl" >$logs/meshes.log 2>&1 &
$tests $same -k "test_uneven_batches and nccl" >$logs/uneven.log 2>&1 &
$tests $same -k "(test_every_schedule or test_every_mesh or test_uneven_batches) and gloo" >$logs/gloo.log 2>&1 &
$tests $same -k "test_shards or test_pipelines or test_blocks" >$logs/shards.log 2>&1 &
$tests $same -k "test_a_state_that_is_carried" >$logs/carried.log 2>&1 &
$tests tests/gpu --ignore=$same --ignore=$train --ignore=tests/gpu/test_faults.py --ignore=tests/gpu/test_live.py \
    >$logs/others.log 2>&1 &
wait
SAME
# Ranks that are killed may take the server's other clients with them, so each of these has its own.
$shared $tests $train -k "test_killed and (single or accumulation or ddp)" >"$logs/killed_1.log" 2>&1 &
$shared $tests $train -k "test_killed and (model or tensor or pipeline)" >"$logs/killed_2.log" 2>&1 &
$shared $tests $train -k "test_killed and (hybrid or fsdp or zero)" >"$logs/killed_3.log" 2>&1 &
$shared $tests $train -k "not test_killed" >"$logs/layouts.log" 2>&1 &
$shared $tests tests/gpu/test_live.py >"$logs/live.log" 2>&1 &
wait
echo "$((SECONDS - began)) s until the faults"
$shared $tests tests/gpu/test_faults.py >"$logs/faults.log" 2>&1
echo "$((SECONDS - began)) s"
failed=0
for log in "$logs"/*.log; do
    end=$(grep -E "^[0-9]+ (passed|failed|skipped|error)" "$log" | tail -n 1)
    echo "$(basename "$log"): ${end:-did not end}"
    [[ $end == *passed* && $end != *failed* && $end != *error* ]] || failed=1
done
exit $failed
