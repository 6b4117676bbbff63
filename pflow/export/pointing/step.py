"""The graph of one decoder step: from what is decoded so far to the next particle, and whether there is one.

The arithmetic of `pflow.model.pointing.decoder_steps_one_event` without its choices in Python: the particle is decoded
in any case, and `stop` says whether it counts.

Letters: S tokens, M items (hits, then tracks), P items that the particle may be assigned, W width, H heads, V codes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pflow.export.pointing.particle import (
    COMPARED,
    LOG_DEPOSIT,
    N_CHOSEN,
    chosen_particle,
    describing_weight,
    proxies_of,
)
from pflow.model.pointing.assignment import feature_columns
from pflow.model.pointing.attention import EPS_UNASSIGNED
from pflow.model.pointing.config import PointingDecodingConfig
from pflow.model.pointing.decoder import N_CHARGE
from pflow.model.pointing.decoder_steps_one_event import StepWeights
from pflow.model.pointing.head import ENERGY_LOG_SIGMA
from pflow.model.pointing.network import PointingNetwork
from pflow.model.pointing.pairs import MIN_UNASSIGNED, MIN_UNASSIGNED_WIDTH
from pflow.model.pointing.seed import MASKED_LOGIT

__all__ = ["DecoderStepGraph"]

EVENT = (
    *("states", "pointer_keys", "item_logits", "item_direction", "item_geometry", "item_sums", "item_token"),
    *("item_order", "item_square", "token_item", "token_energy", "token_inverse_energy", "token_frame", "token_codes"),
    *("nothing", "first_track", "track_items", "track_tokens", "track_limits"),
)
"""Outputs of the encoder that all steps read, beside keys and values of each layer."""

STATE = ("embedded", "unassigned", "assigned_energy", "empty_steps")
"""What one step hands to the next, beside keys and values of each layer."""

ROWS = ("embedded", "query", "seed", "log_energy", "direction", "hit_fraction")
"""What the refinement reads of each particle."""

UNREFINED = "decoded_"
"""Beginning of the names of what it needs in addition where the network has no refinement."""

UNREFINED_ROWS = tuple(
    UNREFINED + name
    for name in ("is_particle", "pdg", "charge", "pdg_logits", "energy_sigma", "direction_sigma", "by_track")
)


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
        describe: Any = network.head.describe
        bias, weight = describe[0].bias, describe[0].weight
        others = [weight[:, : 2 * self.width], describing_weight(weight[:, 2 * self.width :])]
        self.describe = (bias, torch.cat(others, dim=1).t().contiguous())
        self.embed_particle = _embedding(network.decoder.embed_particle[0], network.head.n_pdg)
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
        stop, forced, seed = self._seed(event, *self._seed_logits(event, state))
        values = {"stop": stop, "row_seed": seed, **past}
        values |= self._particle(event, state, seed, forced)
        return tuple(values[name] for name in self.outputs)

    def _state(self, event: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Decoder state [1, W], and keys and values [H, T, D] of all particles so far."""
        weights, x = self.weights, event["embedded"]
        log_unassigned = (1.0 + EPS_UNASSIGNED - self._on_tokens(event)).clamp(min=EPS_UNASSIGNED).log()
        bias = torch.split(weights.strength * log_unassigned, [layer.heads for layer in weights.layers])  # [H, 1, S]
        past: dict[str, Tensor] = {}
        for i, layer in enumerate(weights.layers):
            y = torch.addmm(layer.query_key_value[0], _norm(x, layer.norms[0]), layer.query_key_value[1])
            query, key, value = torch.split(y.view(3 * layer.heads, 1, -1), layer.heads)
            key = torch.cat([event[f"past_key_{i}"], key], dim=1)
            value = torch.cat([event[f"past_value_{i}"], value], dim=1)
            past |= {f"next_past_key_{i}": key, f"next_past_value_{i}": value}
            weight = torch.matmul(query, key.transpose(1, 2)).softmax(-1)
            x = x + torch.addmm(layer.out[0], torch.matmul(weight, value).view(1, -1), layer.out[1])
            query = torch.addmm(layer.query[0], _norm(x, layer.norms[1]), layer.query[1]).view(layer.heads, 1, -1)
            weight = (torch.matmul(query, event[f"memory_key_{i}"].transpose(1, 2)) + bias[i]).softmax(-1)
            attended = torch.matmul(weight, event[f"memory_value_{i}"]).view(1, -1)
            x = x + torch.addmm(layer.memory_out[0], attended, layer.memory_out[1])
            x = x + self.network.decoder.stack.layers[i].feedforward(_norm(x, layer.norms[2]))
        return _norm(x, weights.norm), past

    def _on_tokens(self, event: dict[str, Tensor]) -> Tensor:
        """Assigned fraction of each token, [S]."""
        return event["assigned_energy"] * event["token_inverse_energy"]

    def _seed_logits(self, event: dict[str, Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of each token as seed [S], and of the end [1]."""
        weights = self.weights
        query = torch.addmm(weights.pointer_state[0], state, weights.pointer_state[1]).view(3, 1, -1)
        products = torch.matmul(query, event["pointer_keys"].transpose(1, 2)) + weights.pointer_offset  # [3, 1, S]
        plain, of_assigned, of_energy = torch.split(products, 1)
        log_energy = (event["token_energy"] - event["assigned_energy"] + 1e-3).log()
        tokens = plain + of_assigned * self._on_tokens(event) + of_energy * log_energy
        return tokens.view(-1), self.network.decoder.pointer.eos(state).view(1)

    def _seed(self, event: dict[str, Tensor], logits: Tensor, eos_logit: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Whether there is no particle, whether its seed must be an open track, bool [1], and the seed, int64 [1]."""
        eos_probability = torch.cat([logits, eos_logit]).softmax(0)[-1:]
        ended = (eos_probability >= self.decoding.eos_threshold) | (
            event["empty_steps"] >= self.decoding.max_empty_steps
        )
        seed = logits.argmax(0, keepdim=True)
        if not self.decoding.require_all_tracks:
            return ended, torch.zeros_like(ended), seed
        open_tracks = event["unassigned"].index_select(0, event["track_items"]) > event["track_limits"]
        of_tracks = torch.where(open_tracks, logits.index_select(0, event["track_tokens"]), MASKED_LOGIT)
        best = of_tracks.argmax(0, keepdim=True)
        any_open = open_tracks.index_select(0, best)
        forced = ended & any_open
        track = event["track_tokens"].index_select(0, best)
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
        near = (cosine > network.assignment.min_cosine) & (event["unassigned"] >= MIN_UNASSIGNED)
        # With an item of the seed in any case: an empty axis ends onnxruntime. It gets nothing if it is assigned.
        own = event["token_item"].index_select(0, seed)
        near = near.scatter(0, own, torch.ones_like(own, dtype=torch.bool))
        index = torch.masked_select(event["item_order"], near)  # [P]
        at = event["item_token"].index_select(0, index)
        unassigned = event["unassigned"].index_select(0, index)
        squares = event["item_square"].index_select(0, index)
        fraction = self._fractions(event, frame, query, index, unassigned, (at == seed).float())
        weight = fraction * squares
        pooled = torch.matmul(weight.view(1, -1), event["states"].index_select(0, at))
        pooled = pooled / weight.sum(0, keepdim=True).clamp(min=1e-9)
        proxies = proxies_of(
            fraction.double(), event["item_sums"].index_select(0, index), unit, n_subdetectors=network.n_subdetectors
        )
        head = network.head
        described = torch.cat([query, pooled, proxies.features.float()], dim=1)
        described = functional.gelu(torch.addmm(self.describe[0], described, self.describe[1]))
        described = functional.gelu(head.describe[3](described))
        outputs = torch.addmm(self.weights.head[0], described, self.weights.head[1])
        pdg_logits, others = torch.split(outputs, [head.n_pdg, N_CHARGE + 8], dim=1)
        pdg = pdg_logits.argmax(1)  # [1]
        of_code = event["token_codes"].index_select(0, seed).index_select(1, pdg).view(1, -1)
        of_code, code = torch.split(of_code, [2 * N_CHOSEN, head.n_pdg + 1], dim=1)
        particle = chosen_particle(others, proxies, of_code)
        log_energy, direction, charge = torch.split(particle.chosen, [1, 3, N_CHARGE], dim=1)
        # As input of the decoder
        logs = proxies.logs.float()
        compared = (logs[:, COMPARED : COMPARED + 1] - log_energy).clamp(-4.0, 4.0)
        features = torch.cat([particle.chosen, code, compared, logs[:, LOG_DEPOSIT : LOG_DEPOSIT + 1]], dim=1)
        hidden = functional.gelu(torch.addmm(self.embed_particle[0], features, self.embed_particle[1]))
        embedded = torch.addmm(self.embed[0], torch.cat([hidden, seed_state, pooled], dim=1), self.embed[1])

        assigned, deposit = fraction, weight
        if self.decoding.require_all_tracks:  # the seed's track is the particle's in any case
            is_forced = forced & (index == own)
            fraction = torch.where(is_forced, 1.0, fraction)
            assigned = torch.where(is_forced, unassigned, assigned)
            deposit = torch.where(is_forced, unassigned * squares, weight)
        next_unassigned, next_energy = event["unassigned"], event["assigned_energy"]
        if network.coverage:
            next_unassigned = next_unassigned.scatter(0, index, unassigned - assigned)
            next_energy = next_energy.scatter_add(0, at, deposit)
        is_particle = log_energy.view(1) >= network.min_log_energy  # [1]
        has_track = torch.where(at >= event["first_track"], fraction, 0.0).amax(0, keepdim=True) >= 0.5
        min_deposit = self.decoding.min_deposit_fraction * math.exp(network.min_log_energy)
        counts = is_particle & ((proxies.energy.view(1) >= min_deposit) | has_track)
        values = {
            "row_embedded": embedded,
            "row_query": query,
            "row_log_energy": log_energy.view(1),
            "row_direction": direction,
            "row_hit_fraction": event["nothing"].scatter(0, index, fraction)[None],
            "row_decoded_is_particle": is_particle,
            "row_decoded_pdg": pdg,
            "row_decoded_charge": charge.argmax(1),
            "row_decoded_pdg_logits": pdg_logits,
            "row_decoded_energy_sigma": particle.energy_log_sigma.clamp(*ENERGY_LOG_SIGMA).exp().float().view(1),
            "row_decoded_direction_sigma": particle.direction_sigma.float().view(1),
            "row_decoded_by_track": particle.by_track,
        }
        following = {
            "next_embedded": embedded + 0.0,  # another output of the same name is not possible
            "next_unassigned": next_unassigned,
            "next_assigned_energy": next_energy,
            "next_empty_steps": torch.where(counts, 0, event["empty_steps"] + 1),
        }
        return values | following

    def _fractions(
        self,
        event: dict[str, Tensor],
        frame: dict[str, Tensor],
        query: Tensor,
        index: Tensor,
        unassigned: Tensor,
        same: Tensor,
    ) -> Tensor:
        """Assigned fractions float [P] of items int64 [P].

        Parameters
        ----------
        event, frame
            Of all steps, and of the token of the seed.
        query : float [1, W]
        index : int64 [P], the items
        unassigned : float [P], fraction of each that no particle has
        same : float [P], whether they are of the seed's token

        Notes
        -----
        Features as in `pflow.model.pointing.assignment`, in the order of `_pair_features`, each in a row of its own.
        """
        pairs = self.network.assignment.pair_logits
        arguments, offsets, geometry = self.features
        at = event["item_geometry"].index_select(0, index)  # [P, 7]
        apart = torch.addmm(frame["origin"].view(-1, 1), frame["axes"].view(-1, 7), at.t())
        # Along the axis [mm] and, of 3, theta and azimuth; and what is across the axis, and between unit vectors.
        projected, off = torch.split(apart, [self.frame["origin"] - 6, 6])
        # A distance [mm], and an angle [rad], if small.
        sizes = torch.cat([torch.linalg.vector_norm(off.view(2, 3, -1), dim=1), projected.abs()])
        of_log, of_exp = torch.split(torch.addmm(offsets, arguments, sizes), [2, len(offsets) - 2])
        falling = of_exp.exp()
        along, *others = torch.split(projected, [1, 2] if pairs.delta_features else [1])
        features = [of_log.log(), falling, along.clamp(-900.0, 1500.0), same.view(1, -1), 1.0 - unassigned.view(1, -1)]
        for angles in others:
            turns = angles.asinh()
            features += [turns, falling[-1:] * turns[1:].abs()]
        hidden = torch.addmm(event["item_logits"].index_select(0, index), torch.cat(features).t(), geometry)
        fraction = pairs.out(functional.gelu(hidden + pairs.query(query).view(-1))).view(-1).sigmoid()
        available = ((unassigned - MIN_UNASSIGNED) / MIN_UNASSIGNED_WIDTH).clamp(0.0, 1.0)
        return fraction * available * unassigned  # type: ignore[no-any-return]


def frame_widths(network: PointingNetwork) -> dict[str, int]:
    """Columns of the encoder's ``token_frame``: what a step reads of the token of its seed.

    Axes [n, 7] onto which items' positions, unit vectors and polar angles are projected for the features of pairs, and
    minus the projections of the token's own; and unit vector.
    """
    n_axes = 9 if network.assignment.pair_logits.delta_features else 7
    return {"axes": 7 * n_axes, "origin": n_axes, "unit": 3}


def _pair_features(pairs: Any) -> tuple[Any, Any, Any]:
    """Constants of the features of pairs: factors and offsets of arguments, and weights of the features.

    Rows of the factors are across, angle, along and, with differences, those of theta and azimuth. Columns are the
    arguments of the logarithms ln(1 + across / 10) and ln(angle + 1e-3) and of the exponentials of across (two), angle,
    along and, with differences, theta.
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
    along, log_angle = feature_columns("along", "log_angle", delta_features=pairs.delta_features)
    weight[:, along] /= 300.0
    weight[:, log_angle] /= 2.0
    names = ["log_across", "log_angle", "near", "wide", "angle", "depth", "along", "same_token", "known"]
    if pairs.delta_features:
        names.insert(6, "near_theta")
        names += ["theta", "arc", "near_theta_arc"]
    order = feature_columns(*names, delta_features=pairs.delta_features)
    return np.ascontiguousarray(arguments.T), np.ascontiguousarray(offsets.T), np.ascontiguousarray(weight[:, order].T)


def _embedding(linear: Any, n_pdg: int) -> tuple[Tensor, Tensor]:
    """Bias, and weights [F, W] of the embedding for features in the order in which a step has them."""
    sizes = [n_pdg, N_CHARGE, 1, 1, 1, 1, 3]
    code, charge, log_energy, compared, deposit, is_track, direction = torch.split(linear.weight.t(), sizes)
    rows = [log_energy / 2.0, direction, charge, code, is_track, compared, deposit / 2.0]
    return linear.bias, torch.cat(rows)


def _norm(x: Tensor, norm: tuple[Tensor, Tensor, float]) -> Tensor:
    return torch.layer_norm(x, x.shape[-1:], *norm)
