#!/usr/bin/env bash
# All that is to be asked of a GPU, in one call of at most nine minutes: versions, the tests of devices, times of decoding and
# training beside the CPU's, and with what is left a continuation of `general` from its shipped weights.
#   bash scripts/gpu.sh OUT [DATA] [MINUTES]
# OUT: folder for the results, at most eight files. DATA: folder of the samples, with files zqq_train.root, zqq_val.root and
# others of this form (default: the small ones in tests/data). On a machine without a GPU the same in tiny sizes.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out="$1" data="${2:-tests/data}" end=$((SECONDS + 60 * ${3:-9}))
mkdir -p "$out"
export PYTHONPATH="$PWD/scripts:$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
run() { # run SECONDS FILE COMMAND...: at most so long and not beyond the end; its output goes to the file, too
    local left=$((end - SECONDS)) file="$out/$2" limit=$1
    shift 2
    timeout $((limit < left ? limit : (left > 1 ? left : 1))) "$@" 2>&1 | tee -a "$file"
}

run 60 versions.txt python3 - "$data" "$out" << 'PYTHON'
import json, sys
from pathlib import Path
from pflow.cli.recipe import load_recipe, merged
from pflow.config import VERSION, versions
import torch
print("pflow", VERSION, versions("torch", "numpy", "awkward", "uproot", "pytorch-lightning"), torch.version.cuda)
print(torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU")
# The continuation, whose batches are of the size that fits.
data, out = map(Path, sys.argv[1:])
files = {split: sorted(map(str, [*data.glob(f"*_{split}.root"), *data.glob(f"*_{split}_small.root")])) for split in ("train", "val")}
changes = {"data": {**files, "repeat": None, "max_tokens": None}, "model": {"warmup": 0.01, "final_lr": 1.0, "lr": 1e-4}}
stage = {}
for part in load_recipe("general").stages:
    stage = merged(stage, part)
(out / "continuation.yaml").write_text(json.dumps(merged(stage, changes)))
PYTHON
device=cpu sizes=(1) runs=1
if ! grep -q "^no GPU" "$out/versions.txt"; then
    nvidia-smi >> "$out/versions.txt"
    device=cuda sizes=(1 8 32 128 512) runs=3
fi
events=$(ls "$data"/zqq_train*.root "$data"/zqq_test*.root 2>/dev/null | head -1)

[ $device = cpu ] || run 120 tests.txt python3 -m pytest -q -ra -p no:cacheprovider tests/model/test_device.py
run 150 times.txt python3 scripts/bench.py gpu "$events" --device $device --events "${sizes[@]}" --runs $runs
[ $device = cpu ] || run 60 times_cpu.txt python3 scripts/bench.py gpu "$events" --device cpu --events 16 --runs 1

# Half of what fits, since augmentation joins events; more than 256 would leave few steps.
fits=$(sed -n 's/^fits: \([0-9]*\) events/\1/p' "$out/times.txt" | tail -1)
batch=$((${fits:-8} / 2))
batch=$((batch < 4 ? 4 : batch < 256 ? batch : 256))
left=$((end - SECONDS - 75)) # the rest is for looking at the data and for the last validation
words=(--config "$out/continuation.yaml" --start-from general --output "$out/run" --data.batch-size "$batch" --trainer.precision bf16-mixed)
words+=(--trainer.enable-progress-bar false --trainer.max-steps 10000 --trainer.val-check-interval 50 --trainer.limit-val-batches 8)
if [ $device = cpu ]; then
    words+=(--trainer.max-steps 2 --trainer.val-check-interval 1 --trainer.limit-val-batches 1 --data.tokeniser-events 8)
else
    words+=(--data.num-workers 8 --trainer.max-time "00:00:$((left / 60)):$((left % 60))")
fi
[ "$left" -lt 10 ] || run 600 fit.txt python3 -m pflow fit "${words[@]}"
cp "$out"/run/logs/version_0/metrics.csv "$out/losses.csv"
cp "$out"/run/last.ckpt "$out/last.ckpt" && rm -r "$out/run"
ls -l "$out"
