#!/usr/bin/env bash
# The whole way on the small samples that come with pflow: train a small model for about two minutes, reconstruct events
# it has not seen into a ROOT file, evaluate them. Everything lands in demo/ (or in the folder given as an argument).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh ""

out="${1:-demo}"
test_file=tests/data/gamma1_test_small.root
rm -rf "$out"
mkdir -p "$out"

echo "== 1. What is in a file: pflow inspect"
pflow inspect "$test_file"

echo "== 2. Training: pflow fit (about two minutes)"
pflow fit --config configs/demo.yaml --output "$out/model"

echo "== 3. Reconstruction of events the model has not seen: pflow reconstruct"
pflow reconstruct "$test_file" --checkpoint "$out/model/best.ckpt" --output "$out/reco.root"

echo "== 4. Evaluation against the truth: pflow evaluate"
pflow evaluate "$out/reco.root" --truth "$test_file" --output "$out/evaluation"

echo
echo "Particles: $out/reco.root    Metrics and plots: $out/evaluation/"
