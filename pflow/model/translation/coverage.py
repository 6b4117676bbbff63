"""A decoder that keeps account of the energy that its particles have taken: what is taken lowers what it sees.

For events with many particles. An alignment, trained with the true links, says in which source tokens the last particle
has its energy; the sum over all particles so far is the coverage (Tu et al. 2016, arXiv:1601.04811) of the attention to
the source. A second alignment says in which tokens the next particle has its own.

Letters: B batch, T target tokens, S source tokens with bos and eos, W width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from pflow.data.batch import Batch
from pflow.model.api import ModelInputs
from pflow.model.common.transformer import Caches, KeyValue, Mask
from pflow.model.pointing.attention import Coverage
from pflow.model.pointing.decoder import CoverageDecoder
from pflow.model.pointing.head import EnergyScale
from pflow.model.translation.config import TranslationNetworkConfig
from pflow.model.translation.embed import TargetTokens
from pflow.model.translation.special import SAMPLE

MASKED_LOGIT = -1e4  # logit of padding: finite, so that a logarithm of a weight has a gradient
NEUTRAL = 1  # index of charge 0
MAX_LOG_ENERGY = math.log(1000.0)  # largest ln(E / GeV), and minus the smallest, that a particle takes
MIN_ENERGY = 0.01  # tokens with less energy, GeV, count as if they had it


class Account(NamedTuple):
    """Energy of each source token and what particles have taken of it, float [B, S], GeV; bos and eos have none.

    A track counts its momentum, so that a charged particle takes its energy twice: of its track and of its hits.
    """

    energy: Tensor
    is_track: Tensor  # bool [B, S]
    taken: Tensor

    @classmethod
    def of(cls, batch: Batch) -> Account:
        """Nothing is taken yet."""
        assert batch.readout is not None
        hits, tracks = (torch.ones_like(part[:, None]) for part in (batch.readout.energy, batch.readout.track_charge))
        energy = _on_tokens(batch, hits, tracks)[:, 0]
        is_track = _on_tokens(batch, torch.zeros_like(hits), tracks)[:, 0] > 0
        return cls(energy, is_track, torch.zeros_like(energy))


def true_alignment(batch: Batch) -> Tensor:
    """Fraction of each target particle's visible energy in each source token, float [B, T, S]; zeros without links."""
    target = batch.target
    assert target is not None
    assert target.hit_fraction is not None
    assert target.track_fraction is not None
    energy = _on_tokens(batch, target.hit_fraction, target.track_fraction)
    return energy / energy.sum(-1, keepdim=True).clamp(min=1e-6)


def _on_tokens(batch: Batch, hit_fraction: Tensor, track_fraction: Tensor) -> Tensor:
    """Energy of fractions of hits [B, T, N] and of tracks [B, T, K] on all source tokens, float [B, T, S], GeV."""
    readout = batch.readout
    assert readout is not None
    hits = hit_fraction * (readout.energy * readout.mask)[:, None]
    token = 2 + readout.token[:, None].expand_as(hits)  # behind bos and eos
    on_hits = hits.new_zeros(*hits.shape[:2], 2 + batch.hits.mask.shape[1]).scatter_add(2, token, hits)
    momentum = torch.linalg.vector_norm(readout.track_momentum, dim=-1) * readout.track_mask
    n = 0 if batch.tracker_hits is None else batch.tracker_hits.mask.shape[1]  # which have no energy
    return functional.pad(torch.cat([on_hits, track_fraction * momentum[:, None]], dim=-1), (0, n))


class Alignment(nn.Module):
    """Logarithm of the weight of each source token for each target token."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)

    def project(self, states: Tensor) -> Tensor:
        """Keys float [B, S, W] of the encoded source, scaled for the logits."""
        return self.key(states) * states.shape[-1] ** -0.5  # type: ignore[no-any-return]

    def forward(self, x: Tensor, keys: Tensor, mask: Mask) -> Tensor:
        """Of x float [B, T, W], float [B, T, S]."""
        logits: Tensor = self.query(x) @ keys.transpose(1, 2)
        if mask is not None:
            logits = logits.masked_fill(~mask[:, None], MASKED_LOGIT)
        return logits.float().log_softmax(-1)


class CoveredMemory(NamedTuple):
    """What the decoder makes of the encoded source, once for many steps."""

    states: Tensor  # float [B, S, W]
    layers: Sequence[KeyValue]
    last: Tensor  # keys of the alignments, float [B, S, W]
    next: Tensor
    mask: Mask


class CoveredDecoder(nn.Module):
    """Decoder layers whose attention to the source knows what is taken."""

    def __init__(self, config: TranslationNetworkConfig, inputs: ModelInputs) -> None:
        super().__init__()
        width = config.width
        self.energy_scale = EnergyScale(inputs.energy_mean, inputs.energy_std)
        self.last, self.next = Alignment(width), Alignment(width)
        self.left = nn.Linear(2, width)
        self.stack = CoverageDecoder(config, layers=config.decoder_layers)
        self.pooled = nn.Linear(width, width)

    def project(self, states: Tensor, mask: Mask) -> CoveredMemory:
        """Of the encoded source, float [B, S, W]."""
        layers = self.stack.project(states)
        return CoveredMemory(states, layers, self.last.project(states), self.next.project(states), mask)

    def forward(
        self, x: Tensor, tokens: TargetTokens, memory: CoveredMemory, account: Account, caches: Caches = None
    ) -> tuple[Tensor, Tensor, Tensor, Account]:
        """Decode x, float [B, T, W], the embedded `tokens`; each takes its energy from the `account`, charged twice.

        States like x, logarithms of the weights of the particle that is the input token and of the next one, float [B,
        T, S], and the account after the last token.
        """
        energy = self.energy_scale.log_energy(tokens.energy).clamp(-MAX_LOG_ENERGY, MAX_LOG_ENERGY).exp()
        energy = torch.where(tokens.kind == SAMPLE, energy * (1.0 + (tokens.charge != NEUTRAL)), 0.0)  # [B, T], GeV
        last = self.last(x, memory.last, memory.mask)
        taken = account.taken[:, None] + (last.exp() * energy[..., None]).cumsum(1)  # [B, T, S]
        fraction = (taken / account.energy.clamp(min=MIN_ENERGY)[:, None]).clamp(max=1.0)
        rest = account.energy[:, None] * (1.0 - fraction)
        of_tracks = account.is_track[:, None]
        left = torch.stack([(rest * ~of_tracks).sum(-1), (rest * of_tracks).sum(-1)], dim=-1)
        x = x + self.left(left.log1p())
        coverage = Coverage.of(fraction[:, None], memory.mask)
        decoded = self.stack(x if caches is None else x[:, 0], memory.layers, coverage, caches=caches)
        x = decoded.view_as(x)
        following = self.next(x, memory.next, memory.mask)
        x = x + self.pooled(following.exp() @ memory.states)
        return x, last, following, account._replace(taken=taken[:, -1])


def alignment_loss(log_weight: Tensor, share: Tensor) -> Tensor:
    """Mean cross-entropy of the true fractions [B, T, S], over the particles that have any."""
    known = share.sum(-1) > 0.5
    return -(share * log_weight).sum() / known.sum().clamp(min=1)


def number_left(mask: Tensor) -> Tensor:
    """log(1 + number of particles still to come) at each of T + 1 steps, of the mask bool [B, T]; float [B, T + 1]."""
    return functional.pad(mask.long().flip(1).cumsum(1).flip(1), (0, 1)).float().log1p()
