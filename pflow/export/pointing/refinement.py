"""Decoded particles to physical ones. Letters: T decoded, P kept particles, M items, V codes, W width."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from pflow.checkpoint.load import TrainedModel
from pflow.event.links import MIN_HIT_FRACTION
from pflow.export.pointing.encoder import SOURCE, source_of
from pflow.export.pointing.step import ROWS, UNREFINED, UNREFINED_ROWS
from pflow.model.pointing.config import PointingDecodingConfig
from pflow.model.pointing.generate import refine
from pflow.model.pointing.network import PointingNetwork
from pflow.model.pointing.pairs import PairList
from pflow.model.pointing.refiner import DecodedParticles
from pflow.physics.kinematics import four_momentum_covariance, unit_vector
from pflow.physics.pdg import CLASSES, charges, class_index, masses
from pflow.tokens.particles import NULL_DIRECTION, momentum_and_energy
from pflow.tokens.uncertainty import curve_index

LINKS = tuple(f"{part}_link_{name}" for part in ("hit", "track") for name in (part, "particle", "weight"))


class RefinementGraph(nn.Module):
    """Compute `outputs` from the arrays of `inputs`, both by position; changes the network."""

    def __init__(self, model: TrainedModel, network: PointingNetwork, decoding: PointingDecodingConfig) -> None:
        super().__init__()
        self.network, self.decoding = network, decoding
        self.physics = PhysicalParticles(model)
        of_event = ("hit_index", *SOURCE) if network.refiner is not None else ("hit_index",)
        self.inputs = (*of_event, *(ROWS if network.refiner is not None else (*ROWS, *UNREFINED_ROWS)))
        self.outputs = (*self.physics.outputs, *LINKS)

    def forward(self, *arrays: Tensor) -> tuple[Tensor, ...]:
        """Refine."""
        values = dict(zip(self.inputs, arrays, strict=True))
        if self.network.refiner is None:
            columns = {name.removeprefix(UNREFINED): column for name, column in values.items()}
            pairs = PairList.where(values["hit_fraction"][None] >= MIN_HIT_FRACTION)
            fraction = pairs.values(values["hit_fraction"][None])
        else:
            columns, pairs, fraction = self._refined(values)
        is_particle, hit_index = columns["is_particle"], values["hit_index"]
        row = is_particle.nonzero().squeeze(1)  # [P]
        particles = self.physics({name: columns[name].index_select(0, row) for name in self.physics.inputs})
        is_link = (fraction >= MIN_HIT_FRACTION) & is_particle.index_select(0, pairs.particle)
        of_hits, order = pairs.item < hit_index.shape[0], torch.cumsum(is_particle.long(), 0) - 1

        def links(selected: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            """Item, particle and fraction."""
            index = selected.nonzero().squeeze(1)
            particle = order.index_select(0, pairs.particle.index_select(0, index))
            return pairs.item.index_select(0, index), particle, fraction.index_select(0, index)

        hit, track = links(is_link & of_hits), links(is_link & ~of_hits)
        return (*particles, hit_index.index_select(0, hit[0]), *hit[1:], track[0] - hit_index.shape[0], *track[1:])

    def _refined(self, values: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], PairList, Tensor]:
        """Columns [T, ...] of the refined particles, their pairs with items, and the fraction of the item of each pair;
        see `pflow.model.pointing.generate`."""
        network = self.network
        assert network.refiner is not None
        source = source_of(values)
        rows = {name: values[name][None] for name in ROWS}
        decoded = DecodedParticles.of(rows, torch.ones_like(rows["seed"], dtype=torch.bool))
        particles, charge, assignment, is_particle, _ = refine(network, decoded, source, self.decoding)
        columns = {"is_particle": is_particle, **particles.columns(charge)}
        return {name: column[0] for name, column in columns.items()}, assignment.pairs, assignment.log_fraction.exp()


class PhysicalParticles(nn.Module):
    """Compute the physical `outputs` from the columns `inputs`, [P, ...], as `pflow.tokens.particles` does."""

    inputs = ("pdg", "charge", "log_energy", "direction", "pdg_logits", "energy_sigma", "direction_sigma", "by_track")
    outputs = (
        *("pdg", "charge", "energy", "mass", "momentum", "covariance"),
        *("score", "class_probability", "pdg_probability"),
    )

    def __init__(self, model: TrainedModel) -> None:
        super().__init__()
        codes = np.array(model.tokeniser.pdg.codes)
        self.codes = torch.from_numpy(codes)
        self.charges = torch.from_numpy(np.asarray(charges(codes), dtype=np.float32))
        self.masses = torch.from_numpy(np.asarray(masses(codes), dtype=np.float64))
        classes = class_index(codes)
        self.in_class = torch.from_numpy(np.eye(len(CLASSES), dtype=np.float32)[classes])
        by_track = [curve_index(classes, np.full(len(codes), known)) for known in (False, True)]
        self.curve_of = torch.from_numpy(np.stack(by_track, axis=1))
        self.calibration = model.calibration

    def forward(self, columns: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """Compute the outputs, in their order."""
        index = columns["pdg"]
        charge, mass = self.charges[index], self.masses[index]
        sign = torch.where(charge * (columns["charge"] - 1) < 0, -1, 1)
        p, energy = momentum_and_energy(columns["log_energy"].double().exp(), mass)
        unit = unit_vector(columns["direction"].double(), null=NULL_DIRECTION)
        sigmas = columns["energy_sigma"].double(), columns["direction_sigma"].double()
        if self.calibration is not None:
            sigmas = self.calibration.apply_curves(*sigmas, self.curve_of[index, columns["by_track"].long()])
        covariance = four_momentum_covariance(energy, mass, unit, *sigmas)
        probability = columns["pdg_logits"].softmax(-1)
        return (
            sign * self.codes[index],
            sign * charge,
            energy,
            mass,
            p[:, None] * unit,
            covariance,
            probability.gather(1, index[:, None]).squeeze(1),
            probability @ self.in_class,
            probability,
        )
