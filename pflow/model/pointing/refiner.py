"""The second reading: particles that are all written divide hits and tracks among themselves once more.

A sentence is written from the left to the right, and who comes first takes what a later one may have a better claim to.
When it is written, all its particles are looked at together: each says how strong its claim to each item is, the claims
and that of no one are normalised item by item, and a particle that there is not gives back what it took.

Letters: B batch, T written particles, S source tokens, M items (hits, then tracks), P pairs of a particle and an item,
Q pairs of particles, W width.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from pflow.model.common.layers import FullyConnected
from pflow.model.pointing.decoder import CoverageDecoder
from pflow.model.pointing.geometry import Scene, gather
from pflow.model.pointing.pointer import N_BEND, Incidence, Pairs, bend_features
from pflow.model.pointing.proxies import n_proxy_features
from pflow.model.pointing.shower_direction import SLOPE, shower_slopes

__all__ = ["Relation", "Revised", "Revision"]

REACH = math.cos(0.15)
"""Cosine of the largest angle between a seed and items that its particle had no part of and may yet get."""

MIN_SHARE = 0.01
"""Added to shares before the logarithm: what a claim begins with where the first reading gave nothing."""

NO_CLAIM = -1e4
"""Claim of a particle that there is not."""

ALONE = 0.5
"""Least probability of a particle that is kept where no other is expected."""

NEAR = 0.3
"""What two particles have to do with each other falls by e over this angle, rad."""

N_SLOPE = 4
"""Numbers that tell how the showers of a pair are inclined."""


class Relation(nn.Module):
    """How written particles lie to each other: near ones tell each other the angles between them and their energies.

    The electrons of a converted photon lie side by side in azimuth, the field having parted them by angles that go as
    1 / E; two photons lie anyhow. At birth it says nothing.

    Parameters
    ----------
    width
        Of the particles.
    bend
        Whether they also tell each other how their showers are inclined (`pflow.model.pointing.shower_direction`): the electrons'
        away from each other, two photons' not.
    """

    def __init__(self, *, width: int, bend: bool = False) -> None:
        super().__init__()
        self.bend = bend
        self.one = nn.Linear(width, width)
        self.other = nn.Linear(width, width, bias=False)
        self.geometry = nn.Linear(N_BEND + 3 + N_SLOPE * bend, width, bias=False)
        self.out = nn.Linear(width, width)

    @torch.no_grad()
    def initialise(self) -> None:
        """Begin with saying nothing."""
        self.out.weight.zero_()

    def forward(
        self, x: Tensor, log_energy: Tensor, direction: Tensor, mask: Tensor, share: Tensor, scene: Scene
    ) -> Tensor:
        """What the others mean to each particle, float [B, T, W].

        Parameters
        ----------
        x : float [B, T, W], the particles as the decoder reads them back
        log_energy : float [B, T], ln(E / GeV)
        direction : float [B, T, 3], unit vectors
        mask : bool [B, T], True = written
        share : float [B, T, M], from the first reading
        scene
            Of the batch.
        """
        n = x.shape[1]
        together = mask[:, :, None] & mask[:, None] & ~torch.eye(n, dtype=torch.bool, device=x.device)
        event, one, other = together.nonzero(as_tuple=True)  # pairs of written particles, [Q] each
        start, end = direction[event, one], direction[event, other]
        angle = (end - start).square().sum(-1).clamp(min=1e-12).sqrt()  # rad, as long as it is small
        energies = (log_energy[event, at] / 2.0 for at in (one, other))
        numbers = [bend_features(start, end), torch.stack([(angle + 1e-3).log() / 2.0, *energies], dim=-1)]
        if self.bend:
            pairs = Pairs.where(share > MIN_SHARE)  # of most items it has next to nothing
            slope = shower_slopes(pairs.at(share), pairs, scene, (len(x), n))
            numbers.append(_inclined(slope[event, one], slope[event, other], start, end))
        heard = self.one(x)[event, one] + self.other(x)[event, other] + self.geometry(torch.cat(numbers, dim=-1))
        weighted = functional.gelu(heard) * (-angle / NEAR).exp()[:, None]
        total = weighted.new_zeros(x.shape).flatten(0, 1).index_add(0, event * n + one, weighted)
        return self.out(total.view_as(x))  # type: ignore[no-any-return]


def _inclined(slope: Tensor, other_slope: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """How the showers of pairs are inclined, float [Q, N_SLOPE]: in azimuth towards each other, and in polar angle.

    Parameters
    ----------
    slope, other_slope : float [Q, 2], from `shower_slopes`
    start, end : float [Q, 3], unit vectors of the one and the other
    """
    side = (start[:, 0] * end[:, 1] - start[:, 1] * end[:, 0]).sign()  # 1: the other is further in azimuth
    theta, phi = (slope / SLOPE).asinh().unbind(-1)
    other_theta, other_phi = (other_slope / SLOPE).asinh().unbind(-1)
    return torch.stack([phi * side, -other_phi * side, theta.abs(), other_theta.abs()], dim=-1)


class Revised(NamedTuple):
    """What the second reading says.

    Parameters
    ----------
    query : float [B, T, W]
        Of the particles, as in `pflow.model.pointing.network.PointingTransformer.point`.
    pairs
        Of particles and items.
    log_share : float [P], logarithm of the share of each pair's item
    log_nobody : float [B, M], logarithm of the share of each item that is no one's
    real : float [B, T], logit of the probability that a written particle is one
    kept : bool [B, T], True = written, and probable enough
    """

    query: Tensor
    pairs: Pairs
    log_share: Tensor
    log_nobody: Tensor
    real: Tensor
    kept: Tensor


class Revision(nn.Module):
    """Attention among all written particles and to the memory, and new claims to the items.

    At birth the claims are the shares of the first reading.

    Parameters
    ----------
    width, heads, feedforward, layers
        Of the attention.
    hidden
        Of the map from a pair to its claim.
    n_subdetectors
        Number of calorimeters.
    bend
        See `pflow.model.pointing.pointer.Incidence`.
    dropout
        In the hidden layers of the feed-forward networks.
    """

    def __init__(
        self,
        *,
        width: int,
        heads: int,
        feedforward: int,
        layers: int,
        hidden: int,
        n_subdetectors: int,
        bend: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.enter = nn.Linear(width, width)
        self.decoder = CoverageDecoder(
            width=width, heads=heads, feedforward=feedforward, layers=layers, dropout=dropout
        )
        self.change = FullyConnected((2 * width, width, width), activation="gelu")
        self.incidence = Incidence(width=width, hidden=hidden, n_subdetectors=n_subdetectors, bend=bend, n_known=2)
        self.nobody = nn.Linear(hidden, 1)
        self.real = FullyConnected((width, width, 1), activation="gelu")
        self.describe = FullyConnected((2 * width + n_proxy_features(n_subdetectors), width, width), activation="gelu")

    @torch.no_grad()
    def initialise(self) -> None:
        """Begin with the first reading, in which all that is written is taken to be real."""
        self.decoder.initialise()
        for last in (self.change[-1], self.incidence.out[-1], self.nobody, self.real[-1], self.describe[-1]):
            last.weight.zero_()  # type: ignore[operator]
        self.real[-1].bias.fill_(3.0)  # type: ignore[operator]

    def forward(
        self,
        read: Tensor,
        query: Tensor,
        seed: Tensor,
        share: Tensor,
        mask: Tensor,
        scene: Scene,
        states: Tensor,
        *,
        keep: float = 0.0,
    ) -> Revised:
        """Read what is written once more.

        Parameters
        ----------
        read : float [B, T, W], the particles as the decoder reads them back
        query : float [B, T, W], from the first reading
        seed : int64 [B, T]
        share : float [B, T, M], from the first reading
        mask : bool [B, T], True = written
        scene
            Of the batch.
        states : float [B, S, W], the memory
        keep
            A particle that is less probable than this is not kept and gets nothing. Where few are expected, one too
            many is worse than a little energy lost: of n expected ones (the sum of the probabilities) each must be as
            probable as `ALONE` / n, too. 0: all are kept.
        """
        share = share / share.sum(1, keepdim=True).clamp(min=1.0)
        taken = share.sum(1)  # [B, M]
        x = self.decoder(
            read + self.enter(query),
            states,
            covered=scene.on_tokens(taken[:, None]).expand(-1, seed.shape[1], -1),
            mask=scene.token_mask,
            together=mask,
        )
        query = query + self.change(torch.cat([x, gather(states, seed)], dim=-1))
        real = self.real(x).squeeze(-1)
        probability = real.sigmoid()
        kept = mask & (probability >= _least_probability(probability, mask, keep))

        within = (scene.towards(seed) > REACH) | (share > MIN_SHARE)
        pairs = Pairs.where(within & mask[..., None] & scene.item_mask[:, None])
        own = pairs.at(share)
        others = pairs.at_items(taken) - own
        items = self.incidence.items(states, scene)
        claim = self.incidence(query, items, scene, seed, torch.stack([own, others], dim=-1), pairs)
        claim = claim + (own + MIN_SHARE).log() + pairs.at_particles(functional.logsigmoid(real))
        claim = claim.masked_fill(pairs.at_particles(~kept), NO_CLAIM)
        nobody = self.nobody(functional.gelu(items)).squeeze(-1) + (1.0 - taken + MIN_SHARE).log()
        total = _log_sum(claim, pairs.item_of, nobody.flatten())
        log_share = claim - total.index_select(0, pairs.item_of)
        return Revised(query, pairs, log_share, nobody - total.view_as(nobody), real, kept)


def _least_probability(probability: Tensor, mask: Tensor, keep: float) -> Tensor:
    """Of a particle that is kept, float [B, 1]; see `Revision.forward`."""
    expected = (probability * mask).sum(1, keepdim=True)
    return (ALONE / expected.clamp(min=1.0)).clamp(min=keep) if keep else torch.zeros_like(expected)


def _log_sum(claim: Tensor, item_of: Tensor, nobody: Tensor) -> Tensor:
    """Logarithm of the sum of the exponentials of each item's claims and no one's, float [B * M]."""
    largest = nobody.detach().scatter_reduce(0, item_of, claim.detach(), "amax")
    summed = (nobody - largest).exp().index_add(0, item_of, (claim - largest.index_select(0, item_of)).exp())
    return summed.log() + largest
