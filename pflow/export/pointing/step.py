"""The graph of one decoder step: from what is decoded so far to the next particle, and whether there is one.

The arithmetic of `pflow.model.pointing.event_decoder` without its choices in Python: the particle is decoded in any
case, and `stop` says whether it counts.

Letters: S tokens, M items (hits, then tracks), P items that the particle may be assigned, W width, H heads, V codes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pflow.export.pointing.particle import Particle, corrected_particle, proxies_of
from pflow.model.pointing.attention import MIN_REMAINING
from pflow.model.pointing.config import PointingDecodingConfig
from pflow.model.pointing.decoder import N_CHARGE
from pflow.model.pointing.event_decoder import StepWeights
from pflow.model.pointing.network import PointingNetwork
from pflow.model.pointing.pairs import MAX_ASSIGNED, MAX_ASSIGNED_WIDTH
from pflow.model.pointing.seed import MASKED_LOGIT

__all__ = ["DecoderStepGraph"]

EVENT = (
    *("states", "pointer_keys", "item_logits", "item_direction", "item_geometry", "item_sums", "item_token"),
    *("item_weight", "token_item", "token_energy", "token_inverse_energy", "token_frame", "token_track", "nothing"),
    *("first_track", "track_items", "track_tokens", "track_limits"),
)
"""Outputs of the encoder that all steps read, beside keys and values of each layer."""

STATE = ("embedded", "assigned", "assigned_energy", "empty_steps")
"""What one step hands to the next, beside keys and values of each layer."""

ROWS = ("embedded", "query", "seed", "log_energy", "direction", "hit_fraction")
"""What the refinement reads of each particle."""

UNREFINED_ROWS = ("is_particle", "pdg", "charge", "pdg_logits", "energy_sigma", "direction_sigma")
"""What it needs in addition where the network has no refinement."""


class DecoderStepGraph(nn.Module):
    """From the arrays of `inputs` to `outputs`, by position.

    Parameters
    ----------
    network
        With proxies, in evaluation mode, on the CPU.
    decoding
        When decoding stops.
    """

    def __init__(self, network: PointingNetwork, decoding: PointingDecodingConfig) -> None:
        super().__init__()
        self.network, self.decoding = network, decoding
        self.weights = StepWeights(network)
        self.width = network.decoder.bos.shape[-1]
        self.frame = frame_widths(network)
        bias, weight = self.weights.embed  # made for half of a GELU
        self.embed = (bias, torch.cat([2.0 * weight[: self.width], weight[self.width :]]))
        self.features = [torch.from_numpy(part) for part in _pair_features(network.assignment.pair_logits)]
        layers = range(len(self.weights.layers))
        past = [f"past_{part}_{i}" for i in layers for part in ("key", "value")]
        memory = [f"memory_{part}_{i}" for i in layers for part in ("key", "value")]
        state = (*STATE, *past)
        self.inputs = (*EVENT, *memory, *(f"last_{name}" for name in state))
        rows = ROWS if network.refiner is not None else (*ROWS, *UNREFINED_ROWS)
        self.outputs = ("stop", *(f"next_{name}" for name in state), *(f"row_{name}" for name in rows))

    def forward(self, *arrays: Tensor) -> tuple[Tensor, ...]:
        """Decode."""
        event = {name.removeprefix("last_"): array for name, array in zip(self.inputs, arrays, strict=True)}
        state, past = self._state(event)
        logits = self._seed_logits(event, state)
        stop, forced, seed = self._seed(event, logits)
        values = {"stop": stop, "row_seed": seed, **past}
        values |= self._particle(event, state, seed, forced)
        return tuple(values[name] for name in self.outputs)

    def _state(self, event: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Decoder state [1, W], and keys [H, D, T] and values [H, T, D] of all particles so far."""
        weights, x = self.weights, event["embedded"]
        log_remaining = (1.0 + MIN_REMAINING - self._on_tokens(event)).clamp(min=MIN_REMAINING).log()
        bias = torch.split(weights.strength * log_remaining, [layer.heads for layer in weights.layers])  # [H, 1, S]
        past: dict[str, Tensor] = {}
        for i, layer in enumerate(weights.layers):
            y = torch.addmm(layer.query_key_value[0], _norm(x, layer.norms[0]), layer.query_key_value[1])
            query, key, value = torch.split(y, self.width, dim=1)
            key = torch.cat([event[f"past_key_{i}"], key.view(layer.heads, -1, 1)], dim=2)
            value = torch.cat([event[f"past_value_{i}"], value.view(layer.heads, 1, -1)], dim=1)
            past |= {f"next_past_key_{i}": key, f"next_past_value_{i}": value}
            weight = torch.matmul(query.view(layer.heads, 1, -1), key).softmax(-1)
            x = x + torch.addmm(layer.out[0], torch.matmul(weight, value).view(1, -1), layer.out[1])
            query = torch.addmm(layer.query[0], _norm(x, layer.norms[1]), layer.query[1]).view(layer.heads, 1, -1)
            weight = (torch.matmul(query, event[f"memory_key_{i}"]) + bias[i]).softmax(-1)
            attended = torch.matmul(weight, event[f"memory_value_{i}"]).view(1, -1)
            x = x + torch.addmm(layer.memory_out[0], attended, layer.memory_out[1])
            x = x + self.network.decoder.stack.layers[i].feedforward(_norm(x, layer.norms[2]))
        return _norm(x, weights.norm), past

    def _on_tokens(self, event: dict[str, Tensor]) -> Tensor:
        """Assigned fraction of each token, [S]."""
        return event["assigned_energy"] * event["token_inverse_energy"]

    def _seed_logits(self, event: dict[str, Tensor], state: Tensor) -> Tensor:
        """Logits of each token as seed and, last, of the end, [S + 1]."""
        weights = self.weights
        query = torch.addmm(weights.pointer_state[0], state, weights.pointer_state[1]).view(3, 1, -1)
        products = torch.matmul(query, event["pointer_keys"]) + weights.pointer_offset  # [3, 1, S]
        plain, of_assigned, of_energy = torch.split(products, 1)
        log_energy = (event["token_energy"] - event["assigned_energy"] + 1e-3).log()
        tokens = plain + of_assigned * self._on_tokens(event) + of_energy * log_energy
        return torch.cat([tokens.view(-1), self.network.decoder.pointer.eos(state).view(1)])

    def _seed(self, event: dict[str, Tensor], logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Whether there is no particle, whether its seed must be an open track, bool [1], and the seed, int64 [1]."""
        end = logits.softmax(0)[-1:]
        ended = (end >= self.decoding.eos_threshold) | (event["empty_steps"] >= self.decoding.max_empty_steps)
        seed = logits[:-1].argmax(0, keepdim=True)
        if not self.decoding.require_all_tracks:
            return ended, torch.zeros_like(ended), seed
        open_tracks = event["assigned"].index_select(0, event["track_items"]) < event["track_limits"]
        any_open = open_tracks.long().sum(0, keepdim=True) > 0
        forced = ended & any_open
        of_tracks = torch.where(open_tracks, logits.index_select(0, event["track_tokens"]), MASKED_LOGIT)
        track = event["track_tokens"].index_select(0, of_tracks.argmax(0, keepdim=True))
        return ended & ~any_open, forced, torch.where(forced, track, seed)

    def _particle(self, event: dict[str, Tensor], state: Tensor, seed: Tensor, forced: Tensor) -> dict[str, Tensor]:
        """The particle that starts at a token int64 [1], and the state after it."""
        network = self.network
        frame = dict(
            zip(
                self.frame,
                torch.split(event["token_frame"].index_select(0, seed), [*self.frame.values()], 1),
                strict=True,
            )
        )
        seed_state = event["states"].index_select(0, seed)
        query = network.assignment.query(torch.cat([state, seed_state], dim=1))  # [1, W]
        unit = frame["unit"].double()  # [1, 3]
        cosine = torch.matmul(unit, event["item_direction"]).view(-1)
        near = (cosine > network.assignment.min_cosine) & (event["assigned"] <= MAX_ASSIGNED)
        # With an item of the seed in any case: an empty axis ends onnxruntime. It gets nothing if it is assigned.
        own = event["token_item"].index_select(0, seed)
        index = near.scatter(0, own, torch.ones_like(own, dtype=torch.bool)).nonzero().view(-1)  # [P]
        at = event["item_token"].index_select(0, index)
        fraction = self._fractions(event, frame, query, seed, index, at)

        weight = fraction * event["item_weight"].index_select(0, index).square()
        on_tokens = event["nothing"].scatter_add(0, at, weight)
        pooled = torch.matmul(on_tokens.view(1, -1), event["states"]) / on_tokens.sum(0, keepdim=True).clamp(min=1e-9)
        proxies = proxies_of(
            fraction.double(), event["item_sums"].index_select(0, index), unit, n_subdetectors=network.n_subdetectors
        )
        head = network.head
        described = functional.gelu(head.describe(torch.cat([query, pooled, proxies.features.float()], dim=1)))
        outputs = torch.addmm(self.weights.head[0], described, self.weights.head[1])
        track = event["token_track"].index_select(0, seed)
        particle = corrected_particle(outputs, proxies, track, charged=head.get_buffer("charged"))

        row = torch.zeros_like(event["assigned"]).scatter(0, index, fraction)  # [M]
        before = row.index_select(0, own)
        row = row.scatter(0, own, torch.where(forced, 1.0, before))
        next_assigned, next_energy = event["assigned"], event["assigned_energy"]
        if network.coverage:
            taken = torch.minimum(row, 1.0 - event["assigned"])
            more = torch.where(forced, taken.index_select(0, own) - before, 0.0)  # a part was assigned before
            next_assigned = next_assigned + taken
            next_energy = (next_energy + on_tokens).scatter_add(0, seed, more * frame["energy"].view(1))
        is_particle = particle.log_energy.view(1) >= network.min_log_energy  # [1]
        has_track = forced | (((fraction >= 0.5) & (at >= event["first_track"])).long().sum(0, keepdim=True) > 0)
        min_deposit = self.decoding.min_deposit_fraction * math.exp(network.min_log_energy)
        counts = is_particle & ((proxies.energy.view(1) >= min_deposit) | has_track)
        embedded = self._embed(particle, frame["is_track"], seed_state, pooled, proxies.energy.float())
        values = {
            "row_embedded": embedded,
            "row_query": query,
            "row_log_energy": particle.log_energy.view(1).float(),
            "row_direction": particle.direction.float(),
            "row_hit_fraction": row[None],
            "row_is_particle": is_particle,
            "row_pdg": particle.pdg,
            "row_charge": particle.charge,
            "row_pdg_logits": outputs[:, : head.n_pdg],
            "row_energy_sigma": particle.energy_sigma,
            "row_direction_sigma": particle.direction_sigma,
        }
        following = {
            "next_embedded": embedded + 0.0,  # another output of the same name is not possible
            "next_assigned": next_assigned,
            "next_assigned_energy": next_energy,
            "next_empty_steps": torch.where(counts, 0, event["empty_steps"] + 1),
        }
        return values | following

    def _fractions(
        self, event: dict[str, Tensor], frame: dict[str, Tensor], query: Tensor, seed: Tensor, index: Tensor, at: Tensor
    ) -> Tensor:
        """Assigned fractions float [P] of items int64 [P] at tokens int64 [P].

        Features as in `pflow.model.pointing.assignment`, in the order of `_pair_features`.
        """
        pairs = self.network.assignment.pair_logits
        arguments, offsets, geometry = self.features
        apart = event["item_geometry"].index_select(0, index) - frame["origin"]  # [P, 7]
        projected = torch.matmul(apart, frame["axes"].view(7, -1))  # along the axis [mm] and, of 3, theta, azimuth
        offset, turned, _ = torch.split(apart, [3, 3, 1], dim=1)
        along = projected[:, :1] if pairs.delta_features else projected
        across = torch.linalg.vector_norm(offset - along * frame["axis"], dim=1, keepdim=True)
        angle = torch.linalg.vector_norm(turned, dim=1, keepdim=True)  # rad, for small angles
        known = event["assigned"].index_select(0, index).view(-1, 1)
        sizes = torch.addmm(offsets, torch.cat([across, angle, projected.abs()], dim=1), arguments)
        of_log, of_exp = torch.split(sizes, [2, 5 if pairs.delta_features else 4], dim=1)
        falling = of_exp.exp()
        same = (at == seed).float().view(-1, 1)
        features = [of_log.log(), falling, along.clamp(-900.0, 1500.0), same, known]
        if pairs.delta_features:
            turns = projected[:, 1:].asinh()
            features += [turns, falling[:, -1:] * turns[:, 1:].abs()]
        hidden = torch.addmm(event["item_logits"].index_select(0, index), torch.cat(features, dim=1), geometry)
        fraction = pairs.out(functional.gelu(hidden + pairs.query(query))).sigmoid()
        available = ((MAX_ASSIGNED - known) / MAX_ASSIGNED_WIDTH).clamp(0.0, 1.0)
        return (fraction * available * (1.0 - known)).view(-1)  # type: ignore[no-any-return]

    def _embed(
        self, particle: Particle, is_track: Tensor, seed_state: Tensor, pooled: Tensor, deposit: Tensor
    ) -> Tensor:
        """The particle as input of the decoder, float [1, W]."""
        decoder = self.network.decoder
        log_energy = particle.log_energy.float()
        logs = (deposit + torch.tensor([[0.05, 1e-3]])).log()
        compared, alone = torch.split(logs, 1, dim=1)
        features = [
            torch.eye(decoder.n_pdg).index_select(0, particle.pdg),
            torch.eye(N_CHARGE).index_select(0, particle.charge),
            log_energy / 2.0,
            (compared - log_energy).clamp(-4.0, 4.0),
            alone / 2.0,
            is_track,
            particle.direction.float(),
        ]
        hidden = torch.nn.functional.gelu(decoder.embed_particle[0](torch.cat(features, dim=1)))
        bias, weight = self.embed
        return torch.addmm(bias, torch.cat([hidden, seed_state, pooled], dim=1), weight)


def frame_widths(network: PointingNetwork) -> dict[str, int]:
    """Columns of the encoder's ``token_frame``: what a step reads of the token of its seed.

    Origin of the features of pairs (position, unit vector, polar angle) and the axes [7, n] on which they are
    projected, direction of the axis, unit vector, energy, and whether it is a track.
    """
    n_axes = 3 if network.assignment.pair_logits.delta_features else 1
    return {"origin": 7, "axes": 7 * n_axes, "axis": 3, "unit": 3, "energy": 1, "is_track": 1}


def _pair_features(pairs: Any) -> tuple[Any, Any, Any]:
    """Constants of the features of pairs: of the arguments of two logarithms and of exponentials, and weights.

    Arguments are those of ln(1 + across / 10), ln(angle + 1e-3) and of exponentials of across (two), angle, along and,
    with differences, theta.
    """
    exponents = [(0, -1 / 10), (0, -1 / 50), (1, -1 / 0.02), (2, -1 / 50), (3, -1.0)][
        : 5 if pairs.delta_features else 4
    ]
    arguments = np.zeros((5 if pairs.delta_features else 3, 2 + len(exponents)), dtype=np.float32)
    arguments[0, 0], arguments[1, 1] = 1 / 10, 1.0
    for column, (row, scale) in enumerate(exponents, 2):
        arguments[row, column] = scale
    offsets = np.zeros((1, arguments.shape[1]), dtype=np.float32)
    offsets[0, :2] = 1.0, 1e-3
    weight = pairs.geometry.weight.detach().numpy().copy()
    weight[:, 3] /= 300.0
    weight[:, 5] /= 2.0
    n = weight.shape[1] - 1
    order = [0, 5, 1, 2, 6, 4, *([9] if pairs.delta_features else []), 3, 7, n]
    order += [8, 10, 11] if pairs.delta_features else []
    return arguments, offsets, np.ascontiguousarray(weight[:, order].T)


def _norm(x: Tensor, norm: tuple[Tensor, Tensor, float]) -> Tensor:
    return torch.layer_norm(x, x.shape[-1:], *norm)
