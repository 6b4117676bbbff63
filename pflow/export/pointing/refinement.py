"""The last graph: from the decoded particles to physical ones, with the refinement where the network has one.

Letters: T decoded particles, P kept ones, M items (hits, then tracks), V codes, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from pflow.checkpoint.load import TrainedModel
from pflow.event.links import MIN_HIT_FRACTION
from pflow.export.pointing.encoder import SOURCE, source_of
from pflow.export.pointing.messages import DenseMessages
from pflow.export.pointing.physics import PhysicalParticles
from pflow.export.pointing.step import ROWS, UNREFINED, UNREFINED_ROWS
from pflow.model.common.decode import Sampler
from pflow.model.pointing.config import PointingDecodingConfig
from pflow.model.pointing.network import PointingNetwork
from pflow.model.pointing.pairs import PairList
from pflow.model.pointing.refined_particles import refine
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

    def __init__(self, model: TrainedModel, network: PointingNetwork, decoding: PointingDecodingConfig) -> None:
        super().__init__()
        self.network, self.decoding = network, decoding
        self.physics = PhysicalParticles(model)
        if network.refiner is not None:
            network.refiner.messages = DenseMessages(network.refiner.messages)  # type: ignore[assignment]
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
        kept = is_particle.nonzero().squeeze(1)  # [P]
        particles = self.physics({name: columns[name].index_select(0, kept) for name in self.physics.inputs})
        is_link = (fraction >= MIN_HIT_FRACTION) & is_particle.index_select(0, pairs.particle)
        of_hits, order = pairs.item < hit_index.shape[0], torch.cumsum(is_particle.long(), 0) - 1

        def links(selected: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            """Item, particle and fraction."""
            at = selected.nonzero().squeeze(1)
            particle = order.index_select(0, pairs.particle.index_select(0, at))
            return pairs.item.index_select(0, at), particle, fraction.index_select(0, at)

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
        particles, pdg, charge, assignment, is_particle = refine(network, decoded, source, self.decoding, Sampler())
        columns = {"is_particle": is_particle, **particles.columns(pdg, charge)}
        return {name: column[0] for name, column in columns.items()}, assignment.pairs, assignment.log_fraction.exp()
