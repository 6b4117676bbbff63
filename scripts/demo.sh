#!/usr/bin/env bash
# Train a small model on the small samples for about a minute, reconstruct other events into a ROOT file and evaluate
# them; then reconstruct and evaluate with the shipped models. All output is in demo/ (or in the folder given as an
# argument).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh ""

out="${1:-demo}"
if [ -e "$out" ] && [ ! -f "$out/.pflow-demo" ]; then
    echo "$out is there and was not made by this script: give another folder" >&2
    exit 1
fi
rm -rf "$out"
mkdir -p "$out"
touch "$out/.pflow-demo"

echo "== 1. What is in a file: pflow inspect"
pflow inspect tests/data/gamma1_test_small.root

echo "== 2. Training: pflow fit (about a minute)"
pflow fit --config gamma1 --output "$out/model" \
    --data.train tests/data/gamma1_train_small.root --data.val tests/data/gamma1_val_small.root

# measure NAME MODEL FILE [OPTION]: reconstruct and evaluate into folder NAME; OPTION is one of pflow evaluate.
measure() {
    mkdir -p "$out/$1"
    pflow reconstruct "$3" --checkpoint "$2" --output "$out/$1/reco.root"
    pflow evaluate "$out/$1/reco.root" --truth "$3" --output "$out/$1/evaluation" "${@:4}"
}

echo "== 3. Reconstruction of other photons, and evaluation against the truth"
measure small "$out/model/best.ckpt" tests/data/gamma1_test_small.root

echo "== 4. The same with a shipped model: one or two photons"
measure photons ild-g4-photon tests/data/gammasep_test_small.root --no-plots

echo "== 5. With tracks: hadronic Z decays, and a display of one"
measure jets general tests/data/zqq_test_small.root --no-plots
pflow display tests/data/zqq_test_small.root --reco "$out/jets/reco.root" --colour reco \
    --output "$out/jets/event.png" "$out/jets/event.html"

echo "== 6. An EDM4hep file of CLD, beside Pandora"
measure cld general tests/data/cld_zqq_small.edm4hep.root --no-plots

echo
echo "In the folders small, photons, jets and cld of $out: particles in reco.root, metrics in evaluation/;"
echo "plots and a report in $out/small/evaluation/, one event as an interactive page in $out/jets/event.html."
