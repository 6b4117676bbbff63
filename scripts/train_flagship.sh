#!/usr/bin/env bash
# The flagship from its data to the weights that come with pflow:
#
#     bash scripts/train_flagship.sh [photon|general|all] [OUT]
#
# trains each model (default: all, one after the other) in two stages, the second with the first's weights to begin
# with: configs/flagship_photon.yaml and flagship_photon_2.yaml, configs/flagship_general.yaml and
# flagship_general_2.yaml; on the Geant4 samples in $PFLOW_DATA/g4 (default: ../shared/data/g4), on a GPU where there is
# one, in OUT/flagship_photon, OUT/flagship_photon_2 and so on (default: runs). Then training.json there says how long it
# took, and the best weights are in pflow/weights/ild-g4-photon and pflow/weights/ild-g4-general, in place of those that
# were there.
#
# Interrupted, by Ctrl-C or a crash, it goes on from the last checkpoint when run again; a training that is finished is
# not run again. What was done since is done anew: up to an epoch (photon) or up to 1,000 steps (general). The training
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

# samples STAGE SPLIT: what a stage is trained and chosen on.
samples() {
    case "$1 $2" in
        photon*) echo gamma1 gammasep ;;
        "general train") echo single multi zqq gamma1 ;;
        "general_2 train") echo single multi zqq gammasep gamma1 ;;
        general*) echo single multi zqq ;;
    esac
}

# files STAGE SPLIT: the samples' files as a list for the command line; all of them must be there.
files() {
    local sample file list=""
    for sample in $(samples "$1" "$2"); do
        file="$data/${sample}_$2.root"
        if [ ! -f "$file" ]; then
            echo "no $file: set PFLOW_DATA to the folder that holds g4/" >&2
            return 1
        fi
        list="$list${list:+,}$file"
    done
    echo "[$list]"
}

# train STAGE [FIRST]: train, or go on training, beginning with the best weights of a first stage; note the time.
train() {
    local stage="$1" first="${2:+$out/flagship_$2}" run="$out/flagship_$1" train_files val_files
    if [ -f "$run/training.json" ]; then
        echo "== $stage: training is finished, see $run/training.json"
        return
    fi
    echo "== $stage: training in $run"
    train_files="$(files "$stage" train)"
    val_files="$(files "$stage" val)"
    set -- --config "configs/flagship_$stage.yaml" --data.train "$train_files" --data.val "$val_files" --output "$run"
    if [ -n "$first" ]; then
        set -- "$@" --start_from "$first/best.ckpt"
    fi
    if [ -f "$run/last.ckpt" ]; then
        echo "   from $run/last.ckpt"
        set -- "$@" --ckpt_path "$run/last.ckpt"
    fi
    pflow fit "$@"
    python scripts/training_summary.py "$run" ${first:+--after "$first"}
}

# ship STAGE RUN WEIGHTS: the best weights, with uncertainties that are calibrated on the validation files, and the note
# of the time to their place; what else is there, the model card, stays. Where sentences of the general model end and
# that neutral particles get leftovers was chosen on the validation files, for the resolution of the visible energy.
ship() {
    local validation options=()
    validation="$(files "$1" val)"
    [ "$1" = photon_2 ] || options=(--end 0.85 --leftovers)
    shift
    rm -rf "$1/weights"
    tr ',' ' ' <<< "${validation:1:-1}" |
        xargs pflow calibrate --output "$1/weights" --checkpoint "$1/best.ckpt" "${options[@]}"
    cp "$1/training.json" "$1/weights/"
    mkdir -p "$2"
    mv "$1"/weights/* "$2/"
    rmdir "$1/weights"
}

for model in $models; do
    for split in train val; do
        files "${model}_2" "$split" > /dev/null
    done
done
source scripts/environment.sh ""

for model in $models; do
    train "$model"
    train "${model}_2" "$model"
    echo "== $model: weights to pflow/weights/ild-g4-$model"
    ship "${model}_2" "$out/flagship_${model}_2" "pflow/weights/ild-g4-$model"
done
