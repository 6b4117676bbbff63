"""Pointing: which token a particle begins at (its seed), and which hits and tracks belong to it (its incidence).

Letters: B batch, T particles, S source tokens, M items (hits, then tracks), P pairs of a particle and an item, W width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from pflow.model.common.attention import memory_products
from pflow.model.common.layers import FullyConnected
from pflow.model.pointing.geometry import ITEM_FEATURES, Scene, gather

__all__ = ["IMPOSSIBLE", "N_BEND", "Incidence", "Pairs", "Pointer", "bend_features", "find_pairs"]

IMPOSSIBLE = -1e4
"""Logit of padding, and of seeds that may not be ones: finite, so that an event without tokens has gradients."""

TAKEN = 0.99
"""Items of which more is spoken for are in no pair: there are ever fewer pairs as a sentence goes on."""

N_GEOMETRY = 8
"""Numbers that say where an item lies as seen from a seed."""

N_BEND = 4
"""Numbers more that say it in polar angle and azimuth."""


class Pairs(NamedTuple):
    """Particles and the items that they may be made of: not too far from their seed in direction, and not all taken.

    Parameters
    ----------
    event, particle, item : int64 [P]
        Indices into B, T and M.
    particle_of, item_of : int64 [P]
        Indices into B * T and B * M.
    """

    event: Tensor
    particle: Tensor
    item: Tensor
    particle_of: Tensor
    item_of: Tensor

    @classmethod
    def where(cls, near: Tensor) -> Pairs:
        """Those that `near`, bool [B, T, M], names."""
        event, particle, item = near.nonzero(as_tuple=True)
        return cls(event, particle, item, event * near.shape[1] + particle, event * near.shape[2] + item)

    def at(self, values: Tensor) -> Tensor:
        """Values [B, T, M] at the pairs, [P]; there may be more than T of them."""
        # All of these by one index along one axis: with several, on a CPU, it takes three times as long.
        at = (self.event * values.shape[1] + self.particle) * values.shape[2] + self.item
        return values.flatten().index_select(0, at)

    def at_items(self, values: Tensor) -> Tensor:
        """Values [B, M, ...] of the pairs' items, [P, ...]."""
        return values.flatten(0, 1).index_select(0, self.item_of)

    def at_particles(self, values: Tensor) -> Tensor:
        """Values [B, T, ...] of the pairs' particles, [P, ...]."""
        return self.each(values.flatten(0, 1))

    def at_tokens(self, values: Tensor, scene: Scene) -> Tensor:
        """Values [B, S, ...] of the tokens of the pairs' items, [P, ...]."""
        return values.flatten(0, 1).index_select(0, self.event * values.shape[1] + self.at_items(scene.item_token))

    def dense(self, values: Tensor, shape: Sequence[int]) -> Tensor:
        """Values float [P] in a tensor of zeros [B, T, M]."""
        return values.new_zeros(*shape).index_put((self.event, self.particle, self.item), values)

    def on_tokens(self, values: Tensor, scene: Scene, shape: tuple[int, int]) -> Tensor:
        """Sum of values float [P] over the items of each token, [B, T, S]; `shape` is (B, T)."""
        n_tokens = scene.token_mask.shape[1]
        at = self.particle_of * n_tokens + self.at_items(scene.item_token)
        summed = values.new_zeros(shape[0] * shape[1] * n_tokens).index_add(0, at, values)
        return summed.view(*shape, n_tokens)

    def sums(self, values: Tensor, size: int) -> Tensor:
        """Sum of values float [P, ...] over the items of each of `size` = B * T particles."""
        return values.new_zeros(size, *values.shape[1:]).index_add(0, self.particle_of, values)

    def each(self, values: Tensor) -> Tensor:
        """Values [B * T, ...] of particles at their pairs, [P, ...]: the way back from `sums`."""
        return values.index_select(0, self.particle_of)


def find_pairs(scene: Scene, seed: Tensor, covered: Tensor, mask: Tensor, *, cone: float) -> Pairs:
    """The items within an angle of each seed of which at most `TAKEN` is spoken for.

    Parameters
    ----------
    scene
        Of the batch.
    seed : int64 [B, T], index of a token
    covered : float [B, T, M], share of each item that is spoken for
    mask : bool [B, T], True = real particle
    cone
        Cosine of the largest angle between the directions of seed and item, as seen from the origin.
    """
    return Pairs.where((scene.towards(seed) > cone) & (covered <= TAKEN) & mask[..., None] & scene.item_mask[:, None])


class Pointer(nn.Module):
    """Where the next particle begins, and whether there is one.

    Each token gives evidence that an unwritten particle begins there; the sentence ends when nothing does: the
    probabilities of all tokens and of the end sum to 1. The evidence is a product of state and token, one more of the
    two times the share of the token that is spoken for, and one times the logarithm of the energy that is left.

    Parameters
    ----------
    width
        Of decoder states and memory.
    hidden
        Length of the vectors that are multiplied.
    """

    def __init__(self, *, width: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.state = nn.Linear(width, 3 * hidden)
        self.token = nn.Linear(width, 3 * hidden)
        self.offset = nn.Parameter(torch.empty(3))
        self.stop = FullyConnected((width, width, 1), activation="gelu")

    @torch.no_grad()
    def initialise(self) -> None:
        """Begin with little evidence, and less where a token is spoken for."""
        self.offset.copy_(torch.tensor([-3.0, -3.0, 0.5]))

    def forward(self, state: Tensor, memory: Tensor, scene: Scene, covered: Tensor) -> Tensor:
        """Log probabilities float [B, T, S + 1] of each token and, last, of the end.

        Parameters
        ----------
        state : float [B, T, W], of the decoder
        memory : float [B, S, W]
        scene
            Of the batch.
        covered : float [B, T, S], share of each token that is spoken for
        """
        query = self.state(state).unflatten(-1, (3, self.hidden)) * self.hidden**-0.5  # [B, T, 3, hidden]
        key, shift = self.token.weight.view(3, self.hidden, -1), self.token.bias.view(3, -1)
        constant = torch.einsum("btch,ch->bct", query, shift) + self.offset[:, None]
        plain, taken, energetic = memory_products(query, key, memory, constant[..., None]).unbind(1)  # [B, T, S] each
        left = (scene.token_energy[:, None] * (1.0 - covered) + 1e-3).log()
        evidence = plain + taken * covered + energetic * left
        evidence = evidence.masked_fill(~scene.token_mask[:, None], IMPOSSIBLE)
        return torch.cat([evidence, self.stop(state)], dim=-1).log_softmax(-1)


class Incidence(nn.Module):
    """Which items belong to a particle, given its seed: one logit for each pair.

    A logit is made of the particle's query, the memory of the item's token, the item itself, and where the item lies
    as seen from the seed: along and across the axis of the shower that begins there.

    Parameters
    ----------
    width
        Of queries and memory.
    hidden
        Of the map from a pair to its logit.
    n_subdetectors
        Number of calorimeters.
    bend
        Whether it is also seen how far apart in polar angle and in azimuth the two lie. The field parts the electrons
        of a converted photon in azimuth alone.
    n_known
        Number of shares of a pair's item that are known before.
    """

    def __init__(self, *, width: int, hidden: int, n_subdetectors: int, bend: bool = False, n_known: int = 1) -> None:
        super().__init__()
        self.bend = bend
        self.query = nn.Linear(width, hidden)
        self.token = nn.Linear(width, hidden, bias=False)
        self.item = nn.Linear(ITEM_FEATURES + n_subdetectors, hidden, bias=False)
        self.geometry = nn.Linear(N_GEOMETRY + N_BEND * bend + n_known, hidden, bias=False)
        self.out = FullyConnected((hidden, 16, 1), activation="gelu")

    def items(self, memory: Tensor, scene: Scene) -> Tensor:
        """What all particles share, float [B, M, hidden]: memory float [B, S, W] at the items, and the items."""
        return gather(self.token(memory), scene.item_token) + self.item(scene.item_features)  # type: ignore[no-any-return]

    def forward(self, query: Tensor, items: Tensor, scene: Scene, seed: Tensor, known: Tensor, pairs: Pairs) -> Tensor:
        """Logits float [P].

        Parameters
        ----------
        query : float [B, T, W]
        items : float [B, M, hidden], from `items`
        scene
            Of the batch.
        seed : int64 [B, T]
        known : float [P, n_known], shares of the pair's item: what is spoken for
        pairs
            Of particles and items.
        """
        geometry = _geometry(scene, seed, pairs)
        if self.bend:
            geometry = torch.cat([geometry, _bend(scene, seed, pairs)], dim=-1)
        hidden = pairs.at_particles(self.query(query)) + pairs.at_items(items)
        hidden = hidden + self.geometry(torch.cat([geometry, known], dim=-1))
        return self.out(functional.gelu(hidden)).squeeze(-1)  # type: ignore[no-any-return]


def _geometry(scene: Scene, seed: Tensor, pairs: Pairs) -> Tensor:
    """Where items lie as seen from the seeds, float [P, N_GEOMETRY]."""
    start = pairs.at_particles(gather(scene.token_position, seed))
    axis = pairs.at_particles(gather(scene.token_axis, seed))
    unit = pairs.at_particles(gather(scene.token_unit, seed))
    offset = pairs.at_items(scene.item_position) - start  # mm
    along = (offset * axis).sum(-1)
    across = (offset.square().sum(-1) - along.square()).clamp(min=0.0).sqrt()
    away = pairs.at_items(scene.item_unit) - unit
    angle = away.square().sum(-1).sqrt()  # rad, as long as it is small
    same = pairs.at_items(scene.item_token) == pairs.at_particles(seed)
    return torch.stack(
        [
            torch.log1p(across / 10.0),
            torch.exp(-across / 10.0),
            torch.exp(-across / 50.0),
            (along / 300.0).clamp(-3.0, 5.0),
            torch.exp(-along.abs() / 50.0),
            (angle + 1e-3).log() / 2.0,
            torch.exp(-angle / 0.02),
            same.float(),
        ],
        dim=-1,
    )


def _bend(scene: Scene, seed: Tensor, pairs: Pairs) -> Tensor:
    """Differences in polar angle and in azimuth between items and seeds, float [P, N_BEND]."""
    start = pairs.at_particles(gather(scene.token_unit, seed))
    return bend_features(start, pairs.at_items(scene.item_unit))


def bend_features(start: Tensor, end: Tensor) -> Tensor:
    """Differences in polar angle and in azimuth (as an arc) between unit vectors float [..., 3]: [..., N_BEND]."""
    rho, end_rho = torch.hypot(start[..., 0], start[..., 1]), torch.hypot(end[..., 0], end[..., 1])
    theta = torch.atan2(end_rho, end[..., 2]) - torch.atan2(rho, start[..., 2])  # rad
    cross = start[..., 0] * end[..., 1] - start[..., 1] * end[..., 0]
    arc = cross / rho.clamp(min=1e-3)  # rad
    return torch.stack(
        [
            torch.asinh(theta / 0.003),
            torch.exp(-theta.abs() / 0.003),
            torch.asinh(arc / 0.01),
            torch.exp(-theta.abs() / 0.003) * torch.asinh(arc.abs() / 0.01),
        ],
        dim=-1,
    )
