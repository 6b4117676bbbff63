#!/usr/bin/env bash
# The flagship from its data to the weights that come with pflow:
#
#     bash scripts/train_flagship.sh [photon|general|all] [OUT]
#
# trains with configs/flagship_photon.yaml and configs/flagship_general.yaml (default: all, one after the other) on the
# Geant4 samples in $PFLOW_DATA/g4 (default: ../shared/data/g4), on a GPU where there is one, in OUT/flagship_photon and
# OUT/flagship_general (default: runs). Then training.json there says how long it took, and the best weights are in
# pflow/weights/ild-g4-photon and pflow/weights/ild-g4-general, in place of those that were there.
#
# Interrupted, by Ctrl-C or a crash, it goes on from the last checkpoint when run again; a training that is finished is
# not run again. The checkpoint holds weights, averages, optimiser, learning rate and step. What was done since is done
# anew: up to an epoch (photon), or up to 700 steps (general, whose pass over the data then begins anew as well). Random
# numbers begin anew too, so that the weights are not exactly those of a training in one go.
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

# samples MODEL SPLIT: what a model is trained and chosen on.
samples() {
    case "$1 $2" in
        photon*) echo gamma1 gammasep ;;
        "general train") echo single multi zqq gamma1 ;;
        "general val") echo single multi zqq ;;
    esac
}

# files MODEL SPLIT: the samples' files as a list for the command line; all of them must be there.
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

# train MODEL RUN: train, or go on training, and note the time.
train() {
    local model="$1" run="$2" train_files val_files
    train_files="$(files "$model" train)"
    val_files="$(files "$model" val)"
    set -- --config "configs/flagship_$model.yaml" --data.train "$train_files" --data.val "$val_files" --output "$run"
    if [ -f "$run/last.ckpt" ]; then
        echo "   from $run/last.ckpt"
        set -- "$@" --ckpt_path "$run/last.ckpt"
    fi
    pflow fit "$@"
    python scripts/training_summary.py "$run"
}

# ship RUN WEIGHTS: the best weights and the note of the time to their place; what else is there, the model card, stays.
ship() {
    rm -rf "$1/weights"
    pflow export --checkpoint "$1/best.ckpt" --format weights --output "$1/weights"
    cp "$1/training.json" "$1/weights/"
    mkdir -p "$2"
    mv "$1"/weights/* "$2/"
    rmdir "$1/weights"
}

for model in $models; do
    for split in train val; do
        files "$model" "$split" > /dev/null
    done
done
source scripts/environment.sh ""

for model in $models; do
    run="$out/flagship_$model"
    if [ -f "$run/training.json" ]; then
        echo "== $model: training is finished, see $run/training.json"
    else
        echo "== $model: training in $run"
        train "$model" "$run"
    fi
    echo "== $model: weights to pflow/weights/ild-g4-$model"
    ship "$run" "pflow/weights/ild-g4-$model"
done
