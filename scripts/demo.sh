#!/usr/bin/env bash
# The whole way on the small samples that come with pflow: train a small model for about two minutes, reconstruct events
# it has not seen into a ROOT file, evaluate them; then the same, but for the training, with the models that come with
# pflow. Everything lands in demo/ (or in the folder given as an argument).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh ""

out="${1:-demo}"
rm -rf "$out"
mkdir -p "$out"

echo "== 1. What is in a file: pflow inspect"
pflow inspect tests/data/gamma1_test_small.root

echo "== 2. Training: pflow fit (about two minutes)"
pflow fit --config configs/demo.yaml --output "$out/model"

# measure NAME MODEL FILE [OPTION]: particles and their evaluation, with an option of it, in a folder of that name.
measure() {
    mkdir -p "$out/$1"
    pflow reconstruct "$3" --checkpoint "$2" --output "$out/$1/reco.root"
    pflow evaluate "$out/$1/reco.root" --truth "$3" --output "$out/$1/evaluation" "${@:4}"
}

echo "== 3. Reconstruction of photons the model has not seen, and evaluation against the truth"
measure small "$out/model/best.ckpt" tests/data/gamma1_test_small.root

echo "== 4. The same with a model that comes with pflow: one or two photons"
measure photons ild-g4-photon tests/data/gammasep_test_small.root --no-plots

echo "== 5. And with tracks: hadronic decays of the Z, and a display of one"
measure jets ild-g4-general tests/data/zqq_test_small.root --no-plots
pflow display tests/data/zqq_test_small.root --reco "$out/jets/reco.root" --colour reco \
    --output "$out/jets/event.png" "$out/jets/event.html"

echo
echo "In $out/small, $out/photons and $out/jets: particles in reco.root, metrics in evaluation/;"
echo "plots and a report in $out/small/evaluation/, one event as a page to turn around in $out/jets/event.html."
