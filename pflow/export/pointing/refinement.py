"""The last graph: from the decoded particles to physical ones, with the refinement where the network has one.

Letters: T decoded particles, P kept ones, M items (hits, then tracks), V codes, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from pflow.checkpoint.load import Model
from pflow.event.links import MIN_HIT_FRACTION
from pflow.export.pointing.encoder import SCENE, scene_of
from pflow.export.pointing.messages import DenseMessages
from pflow.export.pointing.physics import PhysicalParticles
from pflow.export.pointing.step import ROWS, UNREFINED, UNREFINED_ROWS
from pflow.model.common.sampler import Sampler
from pflow.model.pointing.config import PointingDecodingConfig
from pflow.model.pointing.encoder import EncodedSource
from pflow.model.pointing.network import PointingNetwork
from pflow.model.pointing.refinement import refine
from pflow.model.pointing.refiner import DecodedParticles

__all__ = ["RefinementGraph"]

LINKS = tuple(f"{part}_link_{name}" for part in ("hit", "track") for name in (part, "particle", "weight"))


class RefinementGraph(nn.Module):
    """From the arrays of `inputs` to `outputs`, by position.

    Parameters
    ----------
    model
        With a `pflow.model.pointing.PointingReconstructor`.
    network
        Its network, in evaluation mode, on the CPU; changed.
    decoding
        Its thresholds.
    """

    def __init__(self, model: Model, network: PointingNetwork, decoding: PointingDecodingConfig) -> None:
        super().__init__()
        self.network, self.decoding = network, decoding
        self.physics = PhysicalParticles(model)
        if network.refiner is not None and network.refiner.messages is not None:
            network.refiner.messages = DenseMessages(network.refiner.messages)  # type: ignore[assignment]
        of_event = ("hit_index", "states", *SCENE) if network.refiner is not None else ("hit_index",)
        self.inputs = (*of_event, *(ROWS if network.refiner is not None else (*ROWS, *UNREFINED_ROWS)))
        self.outputs = (*self.physics.outputs, *LINKS)

    def forward(self, *arrays: Tensor) -> tuple[Tensor, ...]:
        """Refine."""
        values = dict(zip(self.inputs, arrays, strict=True))
        if self.network.refiner is None:
            columns = {name.removeprefix(UNREFINED): column for name, column in values.items()}
        else:
            columns = self._refined(values)
        kept = columns["is_particle"].nonzero().squeeze(1)  # [P]
        columns = {name: columns[name].index_select(0, kept) for name in (*self.physics.inputs, "hit_fraction")}
        fraction = columns["hit_fraction"].t()  # [M, P]: links by hit, then particle
        hit_index = values["hit_index"]
        n_hits = hit_index.shape[0]
        hit, track = _links(fraction[:n_hits]), _links(fraction[n_hits:])
        particles = self.physics(columns)
        return (*particles, hit_index.index_select(0, hit[0]), *hit[1:], *track)

    def _refined(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Columns [T, ...] of the refined particles; see `pflow.model.pointing.decoder_step.generate`."""
        network = self.network
        assert network.refiner is not None
        scene, states = scene_of(values), values["states"][None]
        source = EncodedSource(scene, states, states[:, :0])
        rows = {name: values[name][None] for name in ROWS}
        decoded = DecodedParticles.of(rows, torch.ones_like(rows["seed"], dtype=torch.bool))
        particles, pdg, charge, assignment, is_particle = refine(network, decoded, source, self.decoding, Sampler())
        columns = {
            "is_particle": is_particle,
            "pdg": pdg,
            "charge": charge,
            "log_energy": particles.log_energy,
            "direction": particles.direction,
            "pdg_logits": particles.pdg,
            "energy_sigma": particles.energy_log_sigma.exp(),
            "direction_sigma": particles.direction_log_sigma.exp(),
            "hit_fraction": assignment.pairs.dense(assignment.log_fraction.exp(), decoded.hit_fraction.shape),
        }
        return {name: column[0] for name, column in columns.items()}


def _links(fraction: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Item, particle and fraction of the larger elements of float [M, P]."""
    item, particle = (fraction >= MIN_HIT_FRACTION).nonzero().unbind(1)
    return item, particle, fraction[item, particle]
