"""The pointing model as a `Reconstructor`."""

from __future__ import annotations

from random import Random
from typing import ClassVar

import torch
from torch import Tensor

from pflow.data.batch import Batch, Target
from pflow.model.api import (
    DecodingConfig,
    GeneratedParticles,
    LossConfig,
    ModelInputs,
    Reconstructor,
    TrainingOutput,
)
from pflow.model.pointing.config import (
    PointingDecodingConfig,
    PointingNetworkConfig,
    PointingTrainingConfig,
)
from pflow.model.pointing.generate import explain, generate
from pflow.model.pointing.geometry import EncodedSource
from pflow.model.pointing.loss import PointingLoss
from pflow.model.pointing.network import FIRST_STAGE, PointingNetwork
from pflow.model.pointing.refine_training import RefinementOutput, decode_and_match, refine_matched
from pflow.model.pointing.teacher_forcing import SCHEDULED_SAMPLING_PROB, TeacherForcing, teacher_forcing


class PointingReconstructor(Reconstructor):
    """Network, decoding and losses of the pointing model; ValueError: inputs or options that do not belong together."""

    needs_readout = True
    gives_links: ClassVar[bool] = True

    def __init__(
        self,
        inputs: ModelInputs,
        *,
        network: PointingNetworkConfig = PointingNetworkConfig(),
        decoding: PointingDecodingConfig = PointingDecodingConfig(),
        training: PointingTrainingConfig = PointingTrainingConfig(),
        loss: LossConfig = LossConfig(),
    ) -> None:
        super().__init__(inputs, decoding=decoding, network=network, training=training, loss=loss)
        self.network_config = network
        self.training_config = training
        self.network = PointingNetwork(inputs, network)
        self.loss = PointingLoss(loss, self.network.energy_scale)
        self.own_particles: bool | None = None

    @property
    def first_stage_modules(self) -> tuple[str, ...]:
        """The modules of the first stage, if there is a refiner; else none."""
        return () if self.network.refiner is None else tuple(f"network.{name}" for name in FIRST_STAGE)

    def training_step(self, batch: Batch) -> TrainingOutput:
        """Losses of the first stage with teacher forcing, of the refinement where there is one, or of both (joint)."""
        if batch.target is None:
            raise ValueError("target: the batch has none, and training needs one")
        # A first stage that is frozen computes as in a reconstruction, whose particles the refinement gets.
        frozen = not any(parameter.requires_grad for parameter in self.network.encoder.parameters())
        source = self.network.encode(batch, precise=frozen)
        output: TeacherForcing | RefinementOutput
        first: dict[str, Tensor] = {}
        if self.network.refiner is None:
            output = self._teacher_forcing(source, batch.target)
        else:
            if self.training_config.joint and not frozen:  # else its losses would train nothing
                first = self.loss(self._teacher_forcing(source, batch.target))
            matched = decode_and_match(self.network, source, batch.target, self._decoding(None))
            dtype = torch.float64 if frozen else torch.float32
            output = refine_matched(self.network, source, batch.target, *matched, dtype=dtype)
        losses = self.loss(output)
        if first:
            total = losses["total"] + first["total"]
            losses = {f"first_stage_{name}" if name in losses else name: loss for name, loss in first.items()} | losses
            losses["total"] = total
        particles = output.particles
        energy = self.network.energy_scale.normalised(particles.log_energy)
        return TrainingOutput(losses, {"energy": energy, "direction": particles.direction}, output.target)

    def draw_shared(self, random: Random) -> None:
        """Draw whether the next step trains after the network's own particles, see `Reconstructor.draw_shared`."""
        self.own_particles = random.random() < SCHEDULED_SAMPLING_PROB

    def generate(self, batch: Batch, *, decoding: DecodingConfig | None = None) -> GeneratedParticles:
        """Decode the particles of each event, and refine them; see `Reconstructor.generate`."""
        return generate(self.network, batch, self._decoding(decoding))

    def explain(self, batch: Batch) -> dict[str, Tensor]:
        """Seeds, probabilities and assignment of each step; see `pflow.model.pointing.generate`."""
        return explain(self.network, batch, self._decoding(None))

    def _teacher_forcing(self, source: EncodedSource, target: Target) -> TeacherForcing:
        sampled = self.own_particles
        if sampled is None:
            sampled = float(torch.rand(())) < SCHEDULED_SAMPLING_PROB
        sampled = sampled and self.network.training
        return teacher_forcing(self.network, source, target, self.training_config, own_particles=sampled)

    def _decoding(self, decoding: DecodingConfig | None) -> PointingDecodingConfig:
        chosen = self.decoding if decoding is None else decoding
        if not isinstance(chosen, PointingDecodingConfig):
            raise ValueError(f"decoding: expected a PointingDecodingConfig, found a {type(chosen).__name__}")
        return chosen
