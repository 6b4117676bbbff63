"""The graph of one decoder step: from what is decoded so far to the next particle, and whether there is one.

The arithmetic of `pflow.model.pointing.event_decoder` without its choices in Python: the particle is decoded in any
case, and `stop` says whether it counts.

Letters: S tokens, M items (hits, then tracks), P items that the particle may be assigned, W width, H heads, V codes.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pflow.export.pointing.particle import corrected_particle, proxies_of
from pflow.model.pointing.attention import MIN_REMAINING
from pflow.model.pointing.config import PointingDecodingConfig
from pflow.model.pointing.decoder import N_CHARGE
from pflow.model.pointing.event_decoder import StepWeights
from pflow.model.pointing.network import PointingNetwork
from pflow.model.pointing.pairs import MAX_ASSIGNED, MAX_ASSIGNED_WIDTH
from pflow.model.pointing.seed import MASKED_LOGIT

__all__ = ["DecoderStepGraph"]

TOKEN = tuple(f"token_{name}" for name in ("position", "unit", "axis", "energy", "is_track", "momentum", "charge"))
"""What a step reads of the seed."""

EVENT = (
    *("states", "memory_keys", "memory_values", "pointer_keys", "item_logits", "item_direction", "item_geometry"),
    *("item_sums", "item_token", "item_weight", "token_item", *TOKEN),
)
"""Outputs of the encoder that all steps read."""

STATE = ("embedded", "past", "assigned", "assigned_energy", "empty_steps")
"""What one step hands to the next."""

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

    inputs = (*EVENT, *STATE)

    def __init__(self, network: PointingNetwork, decoding: PointingDecodingConfig) -> None:
        super().__init__()
        self.network, self.decoding = network, decoding
        self.weights = StepWeights(network)
        rows = ROWS if network.refiner is not None else (*ROWS, *UNREFINED_ROWS)
        self.outputs = ("stop", *(f"next_{name}" for name in STATE), *(f"row_{name}" for name in rows))

    def forward(self, *arrays: Tensor) -> tuple[Tensor, ...]:
        """Decode."""
        event = dict(zip(self.inputs, arrays, strict=True))
        state, past = self._state(event)
        logits = self._seed_logits(event, state)
        stop, forced, open_tracks = self._stop(event, logits)
        logits = torch.where(forced & ~open_tracks, MASKED_LOGIT, logits[:-1])
        seed = logits.argmax(0, keepdim=True)  # [1]
        values = {"stop": stop, "next_past": past, "row_seed": seed}
        values |= self._particle(event, state, seed, forced)
        return tuple(values[name] for name in self.outputs)

    def _state(self, event: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Decoder state [1, W], and keys and values of all particles so far."""
        weights, x = self.weights, event["embedded"]
        log_remaining = (1.0 + MIN_REMAINING - self._on_tokens(event)).clamp(min=MIN_REMAINING).log()
        keys, values = event["memory_keys"].unbind(0), event["memory_values"].unbind(0)
        past = torch.split(event["past"], 2)
        longer = []
        for i, layer in enumerate(weights.layers):
            y = torch.addmm(layer.query_key_value[0], _norm(x, layer.norms[0]), layer.query_key_value[1])
            query, new = torch.split(y.view(3, layer.heads, 1, -1), [1, 2])
            known = torch.cat([past[i], new], dim=2)  # [2, H, T, D]
            longer.append(known)
            weight = torch.matmul(query[0], known[0].transpose(1, 2)).softmax(-1)
            x = x + torch.addmm(layer.out[0], torch.matmul(weight, known[1]).view(1, -1), layer.out[1])
            query = torch.addmm(layer.query[0], _norm(x, layer.norms[1]), layer.query[1]).view(layer.heads, 1, -1)
            bias = weights.strength[i * layer.heads : (i + 1) * layer.heads] * log_remaining  # [H, 1, S]
            weight = (torch.matmul(query, keys[i]) + bias).softmax(-1)
            attended = torch.matmul(weight, values[i]).view(1, -1)
            x = x + torch.addmm(layer.memory_out[0], attended, layer.memory_out[1])
            x = x + self.network.decoder.stack.layers[i].feedforward(_norm(x, layer.norms[2]))
        return _norm(x, weights.norm), torch.cat(longer)

    def _on_tokens(self, event: dict[str, Tensor]) -> Tensor:
        """Assigned fraction of each token, [S]."""
        return event["assigned_energy"] / event["token_energy"].clamp(min=1e-9)

    def _seed_logits(self, event: dict[str, Tensor], state: Tensor) -> Tensor:
        """Logits of each token as seed and, last, of the end, [S + 1]."""
        weights, assigned = self.weights, self._on_tokens(event)
        query = torch.addmm(weights.pointer_state[0], state, weights.pointer_state[1]).view(3, 1, -1)
        products = torch.matmul(query, event["pointer_keys"]) + weights.pointer_offset
        plain, of_assigned, of_energy = products.view(3, -1).unbind(0)
        log_energy = (event["token_energy"] * (1.0 - assigned) + 1e-3).log()
        tokens = plain + of_assigned * assigned + of_energy * log_energy
        return torch.cat([tokens, self.network.decoder.pointer.eos(state).view(1)])

    def _stop(self, event: dict[str, Tensor], logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Whether there is no particle, whether its seed must be an open track, bool [1], and those, bool [S]."""
        end = logits.softmax(0)[-1:]
        ended = (end >= self.decoding.eos_threshold) | (event["empty_steps"] >= self.decoding.max_empty_steps)
        unassigned = event["assigned"].index_select(0, event["token_item"]) < 0.5
        open_tracks = event["token_is_track"] & unassigned
        if not self.decoding.require_all_tracks:
            return ended, torch.zeros_like(ended), open_tracks
        any_open = open_tracks.long().sum(0, keepdim=True) > 0
        return ended & ~any_open, ended & any_open, open_tracks

    def _particle(self, event: dict[str, Tensor], state: Tensor, seed: Tensor, forced: Tensor) -> dict[str, Tensor]:
        """The particle that starts at a token int64 [1], and the state after it."""
        network = self.network
        token = {name: event[name].index_select(0, seed) for name in TOKEN}
        seed_state = event["states"].index_select(0, seed)
        query = network.assignment.query(torch.cat([state, seed_state], dim=1))  # [1, W]
        cosine = torch.matmul(token["token_unit"].double(), event["item_direction"]).squeeze(0)
        near = (cosine > network.assignment.min_cosine) & (event["assigned"] <= MAX_ASSIGNED)
        # With an item of the seed in any case: an empty axis ends onnxruntime. It gets nothing if it is assigned.
        own = event["token_item"].index_select(0, seed)
        index = near.scatter(0, own, torch.ones_like(own, dtype=torch.bool)).nonzero().squeeze(1)  # [P]
        fraction = self._fractions(event, token, query, seed, index)

        weight = fraction * event["item_weight"].index_select(0, index).square()
        at = event["item_token"].index_select(0, index)
        on_tokens = torch.zeros_like(event["assigned_energy"]).scatter_add(0, at, weight)
        pooled = torch.matmul(on_tokens[None], event["states"]) / on_tokens.sum().clamp(min=1e-9)
        proxies = proxies_of(
            fraction.double(),
            event["item_sums"].index_select(0, index),
            token["token_unit"][0].double(),
            n_subdetectors=network.n_subdetectors,
        )
        head = network.head
        described = functional.gelu(head.describe(torch.cat([query, pooled, proxies.features.float()[None]], dim=1)))
        outputs = torch.addmm(self.weights.head[0], described, self.weights.head[1])[0]
        particle = corrected_particle(
            outputs, proxies, token, masses=head.get_buffer("masses"), charged=head.get_buffer("charged")
        )

        row = torch.zeros_like(event["assigned"]).scatter(0, index, fraction)  # [M]
        before = row.index_select(0, own)
        row = row.scatter(0, own, torch.where(forced, 1.0, before))
        next_assigned, next_energy = event["assigned"], event["assigned_energy"]
        if network.coverage:
            taken = torch.minimum(row, 1.0 - event["assigned"])
            more = torch.where(forced, taken.index_select(0, own) - before, 0.0)  # a part was assigned before
            next_assigned = next_assigned + taken
            next_energy = (next_energy + on_tokens).scatter_add(0, seed, more * token["token_energy"])
        is_particle = particle.log_energy >= network.min_log_energy  # [1]
        has_track = forced | (((fraction >= 0.5) & (at >= self._first_track(event))).long().sum(0, keepdim=True) > 0)
        min_deposit = self.decoding.min_deposit_fraction * math.exp(network.min_log_energy)
        counts = is_particle & ((proxies.energy >= min_deposit) | has_track)
        embedded = self._embed(particle, token, seed_state, pooled, proxies.energy.float())
        values = {
            "row_embedded": embedded,
            "row_query": query,
            "row_log_energy": particle.log_energy.float(),
            "row_direction": particle.direction[None].float(),
            "row_hit_fraction": row[None],
            "row_is_particle": is_particle,
            "row_pdg": particle.pdg,
            "row_charge": particle.charge,
            "row_pdg_logits": outputs[None, : head.n_pdg],
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

    def _first_track(self, event: dict[str, Tensor]) -> Tensor:
        """Index of the first token that is a track, int64 [1]."""
        return (~event["token_is_track"]).long().sum(0, keepdim=True)

    def _fractions(
        self, event: dict[str, Tensor], token: dict[str, Tensor], query: Tensor, seed: Tensor, index: Tensor
    ) -> Tensor:
        """Assigned fractions float [P] of items int64 [P]; features as in `pflow.model.pointing.assignment`."""
        pairs = self.network.assignment.pair_logits
        geometry = event["item_geometry"].index_select(0, index)  # position, unit vector, polar angle
        axis, unit = token["token_axis"][0], token["token_unit"]
        offset = geometry[:, :3] - token["token_position"]  # mm
        along = torch.mv(offset, axis)
        across = (offset - along[:, None] * axis).square().sum(1).sqrt()
        angle = (geometry[:, 3:6] - unit).square().sum(1).sqrt()  # rad, for small angles
        known = event["assigned"].index_select(0, index)
        features = [
            (1.0 + across / 10.0).log(),
            (across / -10.0).exp(),
            (across / -50.0).exp(),
            (along / 300.0).clamp(-3.0, 5.0),
            (along.abs() / -50.0).exp(),
            (angle + 1e-3).log() / 2.0,
            (angle / -0.02).exp(),
            (event["item_token"].index_select(0, index) == seed).float(),
        ]
        if pairs.delta_features:
            x, y, z = unit.unbind(1)
            rho = torch.hypot(x, y)
            theta = geometry[:, 6] - torch.atan2(rho, z) / 0.003
            near_theta = (-theta.abs()).exp()
            arc = ((x * geometry[:, 4] - y * geometry[:, 3]) / (0.01 * rho.clamp(min=1e-3))).asinh()
            features += [theta.asinh(), near_theta, arc, near_theta * arc.abs()]
        features.append(known)
        hidden = event["item_logits"].index_select(0, index) + pairs.query(query)
        hidden = hidden + pairs.geometry(torch.stack(features, dim=1))
        fraction = pairs.out(functional.gelu(hidden)).squeeze(1).sigmoid()
        available = ((MAX_ASSIGNED - known) / MAX_ASSIGNED_WIDTH).clamp(0.0, 1.0)
        return fraction * available * (1.0 - known)  # type: ignore[no-any-return]

    def _embed(
        self, particle: Any, token: dict[str, Tensor], seed_state: Tensor, pooled: Tensor, deposit: Tensor
    ) -> Tensor:
        """The particle as input of the decoder, float [1, W]."""
        decoder = self.network.decoder
        log_energy = particle.log_energy.float()
        features = [
            functional.one_hot(particle.pdg, decoder.n_pdg)[0].float(),
            functional.one_hot(particle.charge, N_CHARGE)[0].float(),
            log_energy / 2.0,
            ((deposit + 0.05).log() - log_energy).clamp(-4.0, 4.0),
            (deposit + 1e-3).log() / 2.0,
            token["token_is_track"].float(),
            particle.direction.float(),
        ]
        x = decoder.embed_particle(torch.cat(features)[None])
        return x + decoder.embed_seed(seed_state) + decoder.embed_pooled(pooled)  # type: ignore[no-any-return]


def _norm(x: Tensor, norm: tuple[Tensor, Tensor, float]) -> Tensor:
    return torch.layer_norm(x, x.shape[-1:], *norm)
