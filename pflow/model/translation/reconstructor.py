"""The translation models as a `Reconstructor`."""

from __future__ import annotations

from torch import Tensor

from pflow.data.batch import Batch
from pflow.model.api import (
    DecodingConfig,
    GeneratedParticles,
    LossConfig,
    ModelInputs,
    Reconstructor,
    TrainingOutput,
)
from pflow.model.translation.config import TranslationNetworkConfig
from pflow.model.translation.decoder_steps import explain, generate
from pflow.model.translation.loss import TranslationLoss
from pflow.model.translation.network import TranslationNetwork


class TranslationReconstructor(Reconstructor):
    """Network, decoding and losses of the first paper's models.

    Losses: ``charge``, ``pdg``, ``energy``, ``direction``, and ``kind`` with these special tokens. ValueError: inputs
    that the source does not read, or options that do not belong together.
    """

    def __init__(
        self,
        inputs: ModelInputs,
        *,
        network: TranslationNetworkConfig = TranslationNetworkConfig(),
        decoding: DecodingConfig = DecodingConfig(),
        loss: LossConfig = LossConfig(),
    ) -> None:
        super().__init__(inputs, decoding=decoding, network=network, loss=loss)
        self.network = TranslationNetwork(inputs, network)
        self.needs_readout = network.decoder == "coverage"
        self.loss = TranslationLoss(self.network.special, loss, with_coverage=self.needs_readout)

    def training_step(self, batch: Batch) -> TrainingOutput:
        """Losses of teacher forcing; see `Reconstructor.training_step`."""
        prediction = self.network(batch)
        losses = self.loss(prediction, batch)
        assert batch.target is not None  # checked by the network
        return TrainingOutput(
            losses, {name: prediction[name][:, :-1] for name in ("energy", "direction")}, batch.target
        )

    def generate(self, batch: Batch, *, decoding: DecodingConfig | None = None) -> GeneratedParticles:
        """Decode the particles of each event; see `Reconstructor.generate`."""
        return generate(self.network, batch, self.decoding if decoding is None else decoding)

    def explain(self, batch: Batch) -> dict[str, Tensor]:
        """Probabilities and attention of each step; see `pflow.model.translation.decoder_steps`."""
        return explain(self.network, batch, self.generate(batch))
