#!/usr/bin/env bash
# The flagship from its data to the weights that come with pflow:
#
#     bash scripts/train_flagship.sh [photon|general|all] [OUT]
#
# trains each model (default: all, one after the other) in three stages, each with the weights of the one before to
# begin with: configs/flagship_photon.yaml to flagship_photon_3.yaml, configs/flagship_general.yaml to
# flagship_general_3.yaml; on the Geant4 samples in $PFLOW_DATA/g4 (default: ../shared/data/g4), on a GPU where there is
# one, in OUT/flagship_photon, OUT/flagship_photon_2 and so on (default: runs). Then training.json there says how long
# it took, and the weights are in pflow/pretrained/ild-g4-photon and pflow/pretrained/ild-g4-general, in place of those that
# were there.
#
# Interrupted, by Ctrl-C or a crash, it goes on from the last checkpoint when run again; a training that is finished is
# not run again. What was done since is done anew: up to an epoch (photon) or up to 2,000 steps (general). The training
# goes on with the same batches and random numbers, to the same weights as in one go on that machine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
    echo "usage: bash scripts/train_flagship.sh [photon|general|all] [OUT]" >&2
    exit 2
}

[ $# -le 2 ] || usage
case "${1:-all}" in
    photon | general) models="$1" ;;
    all) models="photon general" ;;
    *) usage ;;
esac
out="${2:-runs}"
data="${PFLOW_DATA:-../shared/data}/g4"

# A stage is given by MODEL and its number N; its name is that of the model with the number behind it.
name() {
    echo "$1$([ "$2" = 1 ] || echo "_$2")"
}

# samples MODEL SPLIT: what a model is trained and chosen on.
samples() {
    case "$1 $2" in
        photon*) echo gamma1 gammasep ;;
        "general train") echo single multi zqq gammasep gamma1 ;;
        "general val") echo single multi zqq ;;
    esac
}

# repeats MODEL N: which of them a stage reads more than once in a pass.
repeats() {
    case "$1 $2" in
        photon*) echo '{}' ;;
        "general 1") echo '{"zqq*": 6, "multi*": 3}' ;;
        "general "[23]) echo '{"zqq*": 8, "multi*": 3, "gamma1*": 2}' ;;
    esac
}

# files MODEL SPLIT: the samples' files, a line each; all of them must be there.
files() {
    local sample file
    for sample in $(samples "$@"); do
        file="$data/${sample}_$2.root"
        if [ ! -f "$file" ]; then
            echo "no $file: set PFLOW_DATA to the folder that holds g4/" >&2
            return 1
        fi
        echo "$file"
    done
}

# list MODEL SPLIT: the same as a list for the command line.
list() {
    local lines
    lines="$(files "$@")"
    echo "[${lines//$'\n'/,}]"
}

# train MODEL N: train, or go on training, beginning with the weights that the stage before ends with; note the time.
train() {
    local stage run before i options=()
    stage="$(name "$@")"
    run="$out/flagship_$stage"
    if [ -f "$run/training.json" ]; then
        echo "== $stage: training is finished, see $run/training.json"
        return
    fi
    echo "== $stage: training in $run"
    for i in $(seq "$2"); do # each configuration says what it changes of those before
        options+=(--config "configs/flagship_$(name "$1" "$i").yaml")
    done
    options+=(--data.train "$(list "$1" train)" --data.val "$(list "$1" val)")
    options+=(--data.repeat "$(repeats "$@")" --output "$run")
    before=""
    if [ "$2" -gt 1 ]; then
        before="$out/flagship_$(name "$1" $(($2 - 1)))"
        options+=(--start_from "$before/last.ckpt")
    fi
    if [ -f "$run/last.ckpt" ]; then
        echo "   from $run/last.ckpt"
        options+=(--ckpt_path "$run/last.ckpt")
    fi
    pflow fit "${options[@]}"
    python scripts/training_summary.py "$run" ${before:+--after "$before"}
}

# ship MODEL N: the weights that the last stage, N, ends with, with uncertainties that are calibrated on the validation
# files, and the note of the time to their place; what else is there, the model card, stays. Where sentences end and what
# is kept of them was chosen on the validation files.
ship() {
    local run file validation=() options=() weights="pflow/pretrained/ild-g4-$1"
    case "$1" in
        photon) options=(--end 0.97 --keep 0.5) ;;
        general) options=(--end 0.97 --keep 0.12) ;;
    esac
    run="$out/flagship_$(name "$@")"
    echo "== $1: weights to $weights"
    while IFS= read -r file; do
        validation+=("$file")
    done < <(files "$1" val)
    rm -rf "$run/weights"
    pflow calibrate --output "$run/weights" --checkpoint "$run/last.ckpt" "${options[@]}" -- "${validation[@]}"
    cp "$run/training.json" "$run/weights/"
    mkdir -p "$weights"
    mv "$run"/weights/* "$weights/"
    rmdir "$run/weights"
}

for model in $models; do
    for split in train val; do
        files "$model" "$split" > /dev/null
    done
done
source scripts/environment.sh ""

for model in $models; do
    for stage in 1 2 3; do
        train "$model" "$stage"
    done
    ship "$model" "$stage"
done
