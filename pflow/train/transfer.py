"""Weights of a model of one detector as the beginning of a model of another one."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from pflow.checkpoint.load import PREFIX, Checkpoint
from pflow.model.api import Reconstructor
from pflow.physics.detector import Detector
from pflow.tokens.features import Normaliser
from pflow.tokens.tokeniser import Tokeniser

TRANSVERSE = frozenset({"x", "y", "calo_x", "calo_y"})
LONGITUDINAL = frozenset({"z", "calo_z"})
DISTANCES = frozenset({"log_r", "calo_log_r"})


def transfer_checkpoint(checkpoint: Checkpoint, reconstructor: Reconstructor, detector: Detector) -> Checkpoint:
    """A trained model with tokeniser and weights for events of another `detector`; the same for its own."""
    tokeniser = checkpoint.header.tokeniser
    trained = tokeniser.detector
    columns = {f"{PREFIX}{name}": value for name, value in reconstructor.subdetector_columns.items()}
    nearest = nearest_subdetectors(detector, trained)
    return dataclasses.replace(
        checkpoint,
        header=dataclasses.replace(checkpoint.header, tokeniser=transfer_tokeniser(tokeniser, detector)),
        state_dict=transfer_subdetectors(checkpoint.state_dict, columns, nearest, len(trained.calorimeters)),
    )


def transfer_tokeniser(tokeniser: Tokeniser, detector: Detector) -> Tokeniser:
    """The tokeniser for events of another detector, by which its features keep their meaning.

    Lengths are measured in units of the size of the calorimeter: transverse coordinates in the inner radius of the ECAL
    barrel, z in the |z| of its endcaps, distances in their geometric mean. Angles, energies and momenta, the vocabulary
    and the normaliser of the particles' energy stay.
    """
    radius = detector.ecal_inner_radius / tokeniser.detector.ecal_inner_radius
    length = detector.ecal_inner_z / tokeniser.detector.ecal_inner_z
    scales = {part: _rescaled(scale, radius=radius, length=length) for part, scale in tokeniser.scales.items()}
    return dataclasses.replace(tokeniser, detector=detector, scales=scales)


def _rescaled(scale: Normaliser, *, radius: float, length: float) -> Normaliser:
    mean, std = list(scale.mean), list(scale.std)
    for i, name in enumerate(scale.names):
        if name in DISTANCES:  # log10
            mean[i] += math.log10(radius * length) / 2
        else:
            factor = radius if name in TRANSVERSE else length if name in LONGITUDINAL else 1.0
            mean[i], std[i] = factor * mean[i], factor * std[i]
    return dataclasses.replace(scale, mean=tuple(mean), std=tuple(std))


def nearest_subdetectors(detector: Detector, trained: Detector) -> list[int | None]:
    """For each calorimeter the index of the trained one of the same kind, at best in the same region; None: none."""
    found: list[int | None] = []
    for calorimeter in detector.calorimeters:
        same_kind = [i for i, other in enumerate(trained.calorimeters) if other.kind == calorimeter.kind]
        same_region = [i for i in same_kind if trained.calorimeters[i].region == calorimeter.region]
        found.append(next(iter([*same_region, *same_kind]), None))
    return found


def transfer_subdetectors(
    weights: Mapping[str, Tensor], columns: Mapping[str, tuple[int, int]], nearest: Sequence[int | None], n_trained: int
) -> dict[str, Tensor]:
    """Weights for another list of subdetectors: each takes the columns of the trained one that it is most like, or 0.

    `Reconstructor.subdetector_columns` gives the columns, in blocks of `n_trained`; names that `weights` does not
    have are left out. `nearest` is from `nearest_subdetectors`. Returns all weights, by the same names.
    """
    changed = dict(weights)
    for name, (first, blocks) in columns.items():
        if name not in weights:
            continue
        weight = weights[name]
        pieces = [weight[:, :first]]
        for start in range(first, first + blocks * n_trained, n_trained):
            block = weight[:, start : start + n_trained]
            pieces += [torch.zeros_like(block[:, :1]) if i is None else block[:, i : i + 1] for i in nearest]
        changed[name] = torch.cat([*pieces, weight[:, first + blocks * n_trained :]], dim=1)
    return changed
