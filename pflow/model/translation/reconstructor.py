"""The translation models as a `Reconstructor`: losses and decoder steps.

Letters: B batch, B' events still decoding, S source tokens with bos and eos, T particles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from pflow.data.batch import Batch, Target
from pflow.model.api import (
    DecodingConfig,
    GeneratedParticles,
    LossConfig,
    ModelInputs,
    Reconstructor,
    masked_mean,
    with_total,
)
from pflow.model.decode import Keep, change_tensors, decode
from pflow.model.transformer import KVCache
from pflow.model.translation.network import LOSSES, TranslationNetwork, copy_losses
from pflow.model.translation.tokens import IGNORE, SAMPLE, SpecialTokens, TargetTokens, TranslationNetworkConfig


def losses_of(
    prediction: Mapping[str, Tensor], target: Target, special: SpecialTokens, weights: Mapping[str, float]
) -> dict[str, Tensor]:
    """The paper's losses by name, unweighted, and ``total``, scalars, of what `TranslationNetwork.forward` predicts.

    Cross-entropies of the classes, and mean square errors of the normalised log10 E and of the components of the unit
    vector; means over real tokens: padding neither dilutes nor dominates them. Where directions are copied, the losses
    of `copy_losses`.
    """
    losses = {}
    for name, label in special.labels(target).items():
        logits = prediction[name].float().flatten(0, 1)
        # A sum, as torch's mean is NaN if no token of the batch has a label.
        total = functional.cross_entropy(logits, label.flatten(), ignore_index=IGNORE, reduction="sum")
        losses[name] = total / (label != IGNORE).sum().clamp(min=1)
    if "pointer" in prediction:
        return with_total(losses | copy_losses(prediction, target), weights)
    for name in ("energy", "direction"):
        off = prediction[name][:, :-1].float() - getattr(target, name)  # [B, T] or [B, T, 3], without eos
        off = off[..., None] if off.ndim == 2 else off
        # What padding holds may not be finite; masked before it is squared, it has no gradient.
        error = torch.where(target.mask[..., None], off, 0.0)
        losses[name] = masked_mean(error.square().mean(-1), target.mask)
    return with_total(losses, weights)


class TranslationDecoder:
    """Decoder state of a batch (`pflow.model.decode.Decoder`), with keys and values of all tokens."""

    def __init__(self, network: TranslationNetwork, batch: Batch, decoding: DecodingConfig) -> None:
        self.network, self.eos_threshold = network, decoding.eos_threshold
        states, self.memory_mask = network.source(batch)
        self.memory = [known.contiguous() for known in network.decoder.project(states)]
        self.caches = [KVCache() for _ in self.memory]
        self.items = self.assigned = None
        if network.copy is not None:
            self.items = network.copy.items(states, batch)
            self.assigned = torch.zeros_like(self.items.energy)[:, None]
        self.tokens, self.n_decoded = TargetTokens.bos(len(batch), batch.hits.mask.device), 0
        self.next: dict[str, Tensor] = {}

    def advance(self) -> Tensor:
        """Predict the next token of each event; bool [B'], True = it is a particle."""
        network, x = self.network, self.network.target(self.tokens, first=self.n_decoded)
        self.n_decoded += 1
        x = network.decoder(x, self.memory, memory_mask=self.memory_mask, caches=self.caches)
        prediction = network.heads(x)
        if network.copy is not None:
            copied = network.copy(x, self.items, self.assigned)
            self.assigned = self.assigned + copied.fraction
            prediction |= {"energy": copied.energy, "direction": copied.direction}
        prediction = {name: value[:, 0] for name, value in prediction.items()}
        ended, chosen = network.special.choose(prediction, eos_threshold=self.eos_threshold)
        self.next = {**chosen, "energy": prediction["energy"], "direction": prediction["direction"]}
        goes_on: Tensor = ~(ended & prediction["energy"].isfinite())  # NaN ends no event: the caller must see it
        return goes_on

    def sizes(self, goes_on: Tensor) -> Tensor:
        """`emit` needs none."""
        return torch.empty(0, dtype=torch.int64, device=goes_on.device)

    def compact(self, keep: Keep) -> None:
        """Drop the events that have ended."""
        parts = self.memory, self.memory_mask, self.items, self.assigned, self.next
        kept = change_tensors(keep, parts)
        self.memory, self.memory_mask, self.items, self.assigned, self.next = kept
        for cache in self.caches:
            cache.compact(keep)

    def emit(self, sizes: Sequence[int]) -> dict[str, Tensor]:
        """The predicted particles, which become the next input."""
        inputs = {name: value[:, None] for name, value in self.next.items() if name != "score"}
        self.tokens = TargetTokens(**inputs, kind=torch.full_like(inputs["pdg"], SAMPLE))
        return self.next


class TranslationReconstructor(Reconstructor):
    """Network, decoding and losses of the first paper's models.

    Losses: ``charge``, ``pdg``, ``energy``, ``direction``, ``kind`` with these special tokens, and ``pointer`` and
    ``assignment`` where directions are copied. ValueError: inputs that the source does not read, or options that do not
    belong together.
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
        self.needs_readout = self.network.copy is not None
        of_copy = LOSSES if self.needs_readout else ()
        names = ("charge", "pdg", *self.network.special.heads, "energy", "direction", *of_copy)
        self.loss_weights = loss.complete(names)

    def training_step(self, batch: Batch) -> dict[str, Tensor]:
        """Losses of teacher forcing; see `Reconstructor.training_step`."""
        prediction = self.network(batch)
        assert batch.target is not None  # checked by the network
        return losses_of(prediction, batch.target, self.network.special, self.loss_weights)

    @torch.inference_mode()
    def generate(self, batch: Batch, *, decoding: DecodingConfig | None = None) -> GeneratedParticles:
        """Decode the particles of each event; see `Reconstructor.generate`."""
        if self.network.training:
            raise ValueError("model: it is in training mode; call model.eval() first")
        decoding = self.decoding_as(DecodingConfig, decoding)
        decoder = TranslationDecoder(self.network, batch, decoding)
        decoded = decode(decoder, batch=len(batch), max_particles=decoding.max_particles, device=batch.hits.mask.device)
        return GeneratedParticles(**decoded.columns, mask=decoded.mask, truncated=decoded.truncated)
