"""The pointing model as a `Reconstructor`."""

from __future__ import annotations

from typing import ClassVar

from pflow.data.batch import Batch
from pflow.model.api import DecodingConfig, GeneratedParticles, ModelInputs, Reconstructor, Sampler, TrainingOutput
from pflow.model.pointing.config import (
    PointingDecodingConfig,
    PointingLossConfig,
    PointingNetworkConfig,
    PointingTrainingConfig,
)
from pflow.model.pointing.generate import generate_pointing
from pflow.model.pointing.loss import PointingLoss
from pflow.model.pointing.network import LN10, PointingTransformer
from pflow.model.pointing.refine_training import Reread, teach_again
from pflow.model.pointing.teacher_forcing import Taught, teach

__all__ = ["PointingReconstructor"]


class PointingReconstructor(Reconstructor):
    """Network, decoding and losses of the pointing model.

    Parameters
    ----------
    inputs
        Sizes and scales that follow from the tokeniser.
    network
        Sizes and parts of the network.
    decoding
        When decoding stops, and which particles are kept.
    training
        How the first stage is trained.
    loss
        Weights of the losses.

    Raises
    ------
    ValueError
        Inputs that the network cannot read, or options that do not belong together.
    """

    needs_readout: ClassVar[bool] = True

    def __init__(
        self,
        inputs: ModelInputs,
        *,
        network: PointingNetworkConfig = PointingNetworkConfig(),
        decoding: PointingDecodingConfig = PointingDecodingConfig(),
        training: PointingTrainingConfig = PointingTrainingConfig(),
        loss: PointingLossConfig = PointingLossConfig(),
    ) -> None:
        super().__init__(inputs, decoding=decoding, network=network, training=training, loss=loss)
        self.training_config = training
        if decoding.require_all_tracks and not network.coverage:
            raise ValueError("require_all_tracks: without coverage it is not known which tracks are assigned")
        self.network = PointingTransformer(inputs, network)
        self.loss = PointingLoss(loss)

    @property
    def first_stage_modules(self) -> tuple[str, ...]:
        """All of the network but the refinement, where there is one."""
        if self.network.revision is None:
            return ()
        second = ("revision", "relation", "unbend")
        return tuple(f"network.{name}" for name, _ in self.network.named_children() if name not in second)

    def training_step(self, batch: Batch) -> TrainingOutput:
        """Losses of teacher forcing, or with a refinement of its particles; see `Reconstructor.training_step`."""
        if batch.target is None:
            raise ValueError("target: the batch has none, and teacher forcing needs one")
        network = self.network
        source = network(batch)
        if network.revision is None:
            taught: Taught | Reread = teach(network, source, batch.target, self.training_config)
        else:
            taught = teach_again(network, source, batch.target, self._decoding(None))
        made = taught.particles
        energy = (made.log_energy / LN10 - network.energy_mean) / network.energy_std
        losses = self.loss(taught, network)
        return TrainingOutput(losses, {"energy": energy, "direction": made.direction}, taught.target)

    def generate(
        self, batch: Batch, *, decoding: DecodingConfig | None = None, sampler: Sampler | None = None
    ) -> GeneratedParticles:
        """Decode the particles of each event, and refine them; see `Reconstructor.generate`."""
        return generate_pointing(self.network, batch, decoding=self._decoding(decoding), sampler=sampler or Sampler())

    def _decoding(self, decoding: DecodingConfig | None) -> PointingDecodingConfig:
        chosen = self.decoding if decoding is None else decoding
        if not isinstance(chosen, PointingDecodingConfig):
            raise ValueError(f"decoding: expected a PointingDecodingConfig, found a {type(chosen).__name__}")
        return chosen
