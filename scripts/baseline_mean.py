"""What a model is worth that always answers the training mean: its losses and errors on a validation file.

    python scripts/baseline_mean.py --train gamma1_train.root --val gamma1_val.root --config configs/data/hits.yaml

It writes the most frequent charge and |PDG| of the training split (its cross-entropies are those of the training
frequencies), the mean of log10 E, and the mean direction; the sentence always has the most frequent length. Losses are
those of `ParticleLoss` with its default weights, so they compare with ``val/loss`` of a fit, errors with
``val/energy_error`` and ``val/angle_deg``.
"""

from __future__ import annotations

import argparse
import json

import numpy as np
import torch

from pflow.data.datamodule import ParticleFlowData
from pflow.data.dataset import EventDataset
from pflow.model.translation.loss import ParticleLoss
from pflow.model.translation.special import IGNORE, Flags
from pflow.resources import load_yaml
from pflow.train.quality import next_particle_errors


def frequencies(dataset: EventDataset, n_classes: dict[str, int]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """How often each class follows in training, [V] for charge and pdg (eos included), and the mean direction [3]."""
    special = Flags()
    counts = {name: torch.zeros(size + special.offset) for name, size in n_classes.items()}
    directions = []
    for labelled in dataset:
        target = labelled.batch.target
        for name, label in special.labels(target).items():
            counts[name] += torch.bincount(label[label != IGNORE], minlength=len(counts[name]))
        directions.append(target.direction[target.mask])
    return counts, torch.cat(directions).mean(dim=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True, nargs="+")
    parser.add_argument("--val", required=True, nargs="+")
    parser.add_argument("--config", help="YAML of data options, e.g. configs/data/hits.yaml")
    args = parser.parse_args()

    options = load_yaml(args.config) if args.config else {}
    data = ParticleFlowData(**{**options, "train": args.train, "val": args.val})
    data.setup("fit")
    sizes = {"charge": data.tokeniser.sizes["n_charge"], "pdg": data.tokeniser.sizes["n_pdg"]}
    counts, mean_direction = frequencies(data.train_dataloader().dataset, sizes)
    # A class that training never showed has a frequency of 0; a floor keeps its logarithm finite.
    logits = {name: torch.log((count / count.sum()).clamp(min=1e-9)) for name, count in counts.items()}
    loss = ParticleLoss()
    std = data.tokeniser.energy.std[0]

    sums: dict[str, float] = {}
    weights: dict[str, float] = {}
    for labelled in data.val_dataloader():
        target = labelled.batch.target
        B, T = target.mask.shape
        prediction = {name: value.expand(B, T + 1, -1) for name, value in logits.items()}
        # Normalised energies have mean 0 in training.
        prediction |= {"energy": torch.zeros(B, T + 1), "direction": mean_direction.expand(B, T + 1, 3)}
        named = {f"loss/{name}": value for name, value in loss(prediction, labelled.batch).items()}
        named |= next_particle_errors(prediction, target, std)
        for name, value in named.items():
            weight = B if name.startswith("loss/") else int(target.mask.sum())
            sums[name] = sums.get(name, 0.0) + float(value) * weight
            weights[name] = weights.get(name, 0.0) + weight
    print(json.dumps({name: round(total / weights[name], 5) for name, total in sums.items()}, indent=2))
    n = sum(int(np.prod(labelled.event.shape)) for labelled in data.val_dataloader())
    print(f"{n} validation events, {data.tokeniser.n_events} training events")


if __name__ == "__main__":
    main()
