"""Decoder steps of one event on a CPU, with few and small operations.

The same as `pflow.model.pointing.decoder_steps.BatchDecoder`, which decodes batches, but for rounding. What does not
change is made once an event: keys and values of the memory, tables of the items' geometry, buffers. What a step has of
its one particle are plain numbers.

Letters: S source tokens, M items (hits, then tracks), P items that the particle may be assigned, T particles, W width,
H heads, D = W / H, R subdetectors.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor, nn

from pflow.model.common.activation import gelu
from pflow.model.common.decode import DecodedSequence
from pflow.model.pointing.assignment import feature_columns
from pflow.model.pointing.attention import EPS_UNASSIGNED
from pflow.model.pointing.config import PointingDecodingConfig
from pflow.model.pointing.decoder import N_CHARGE
from pflow.model.pointing.encoder import EncodedSource
from pflow.model.pointing.geometry import ITEM_FEATURES, LAYER, Scene
from pflow.model.pointing.head_one_event import (
    Directions,
    HeadOutputs,
    Particle,
    Shape,
    Sums,
    correct,
    presence,
    proxy_directions,
    proxy_features,
)
from pflow.model.pointing.network import PointingNetwork
from pflow.model.pointing.pairs import MIN_UNASSIGNED, MIN_UNASSIGNED_WIDTH
from pflow.model.pointing.proxies import CORE_RADIUS, CORE_RADIUS_WIDTH
from pflow.model.pointing.showers import LOG_WEIGHT

__all__ = ["decode_event"]

FIRST_STEPS = 16
"""Decoder steps that the caches have room for at first."""

_Linear = tuple[Tensor, Tensor]  # bias [out], weight [in, out]


def decode_event(network: PointingNetwork, source: EncodedSource, decoding: PointingDecodingConfig) -> DecodedSequence:
    """Decode one event, each step with its most probable seed and identity.

    Parameters
    ----------
    network
        With proxies, in evaluation mode, on a CPU.
    source
        Encoded source of a batch of one event with tokens; it may have padding.
    decoding
        When decoding stops.
    """
    tokens = source.scene.token_mask[0].nonzero().squeeze(1)
    items = source.scene.item_mask[0].nonzero().squeeze(1)
    decoder = EventDecoder(network, source, tokens, items, decoding)
    truncated = False
    limit = int(decoding.limits(source.scene.item_mask, source.scene.n_hits)[0])
    for position in itertools.count():
        seed = decoder.advance()
        if seed is None:
            break
        if position == limit:
            truncated = True
            break
        decoder.emit(seed)
    columns = decoder.columns()
    n_particles = len(columns["seed"])
    fraction = source.states.new_zeros(n_particles, source.scene.item_mask.shape[1])
    fraction[:, items] = columns["hit_fraction"]
    columns |= {"seed": tokens[columns["seed"]], "hit_fraction": fraction}
    mask = torch.ones(1, n_particles, dtype=torch.bool)
    return DecodedSequence({name: values[None] for name, values in columns.items()}, mask, torch.tensor([truncated]))


def _linear(layer: nn.Linear, scale: float = 1.0) -> _Linear:
    bias = layer.bias if layer.bias is not None else layer.weight.new_zeros(layer.out_features)
    return bias * scale, (layer.weight * scale).t()


class TwoLayers:
    """Two linear maps with a GELU between them, of one row.

    x (1 + erf(x / sqrt 2)) / 2 with the half in the second weights: torch's own GELU takes longer than the maps.

    Parameters
    ----------
    layers
        A `pflow.model.common.layers.FullyConnected` of two maps.
    """

    def __init__(self, layers: Any) -> None:
        self.first_bias, self.first_weight = _linear(layers[0])
        self.bias, self.weight = layers[-1].bias, (0.5 * layers[-1].weight).t()
        self.inverse_sqrt2, self.one = self.bias.new_tensor(0.5**0.5), self.bias.new_tensor(1.0)

    def __call__(self, x: Tensor) -> Tensor:
        """[1, in] to [1, out]."""
        return torch.addmm(self.bias, self.hidden(x), self.weight)

    def hidden(self, x: Tensor) -> Tensor:
        """Twice the hidden layer, [1, hidden]."""
        x = torch.addmm(self.first_bias, x, self.first_weight)
        return torch.mul(x, self.inverse_sqrt2).erf_().add_(self.one).mul_(x)


HIT_ENERGY = 0
"""Column of `EventDecoder.by_fraction`."""

POSITION, NORM, SUBDETECTORS = slice(0, 3), 3, 4
"""Columns of `EventDecoder.by_deposit`: positions, ones, and the first of those by subdetector."""

SAME_TOKEN, KNOWN, ALONG, LOG_ACROSS, LOG_ANGLE, NEAR, WIDE, DEPTH, ANGLE = range(1, 10)
ROW_FEATURES = ("same_token", "known", "along", "log_across", "log_angle", "near", "wide", "depth", "angle")
"""Features of pairs that a step computes, and their rows, behind a row of ones. From `NEAR` on they become
exponentials."""

NEAR_THETA, THETA, ARC, NEAR_THETA_ARC = range(10, 14)
DELTA_ROW_FEATURES = ("near_theta", "theta", "arc", "near_theta_arc")
"""Those of the differences in polar angle and azimuth, the first an exponential, the last a product."""


def _pair_weights(geometry: Tensor, *, delta_features: bool) -> Tensor:
    """Weights [F, hidden] of 1 (set to the query's at each step), `ROW_FEATURES` and `DELTA_ROW_FEATURES`.

    A step computes the distance along the axis in mm, and whole logarithms: the network's units are in the weights.

    Parameters
    ----------
    geometry : float [hidden, features], of `pflow.model.pointing.assignment.AssignmentLogits`
    delta_features
        Whether it has those of the differences.
    """
    scaled = geometry.clone()
    along, log_angle = feature_columns("along", "log_angle", delta_features=delta_features)
    scaled[:, along] /= 300.0
    scaled[:, log_angle] /= 2.0
    names = (*ROW_FEATURES, *(DELTA_ROW_FEATURES if delta_features else ()))
    order = feature_columns(*names, delta_features=delta_features)
    return torch.cat([torch.zeros_like(geometry[:, :1]), scaled[:, order]], dim=1).t().contiguous()


class LayerWeights:
    """Weights of a decoder layer; scales and the bias of the values are absorbed.

    Parameters
    ----------
    layer
        Of `pflow.model.pointing.decoder.CoverageDecoder`.
    """

    def __init__(self, layer: Any) -> None:
        own, memory = layer.attention, layer.memory_attention.attention
        self.heads: int = own.heads
        self.norms = [
            (residual.norm.weight, residual.norm.bias, residual.norm.eps)
            for residual in (layer.attention_residual, layer.memory_residual, layer.feedforward_residual)
        ]
        width = own.out.in_features
        self.scale = (width // self.heads) ** -0.5
        bias, weight = _linear(own.query_key_value)
        scale = torch.cat([bias.new_full((width,), self.scale), bias.new_ones(2 * width)])
        self.query_key_value = (bias * scale, weight * scale)
        self.out = _linear(own.out)
        self.query = _linear(memory.query, self.scale)
        self.key_weight, self.value_weight = memory.key_value.weight.chunk(2)  # [W, W] each
        bias = memory.key_value.bias.chunk(2)[1]
        self.memory_out = (memory.out.bias + memory.out.weight @ bias, memory.out.weight.t())
        self.feedforward = TwoLayers(layer.feedforward)

    def memory(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Keys [H, D, S] and values [H, S, D] of states [S, W]."""
        key = (self.key_weight @ states.t()).view(self.heads, -1, len(states))
        value = (states @ self.value_weight.t()).view(len(states), self.heads, -1).transpose(0, 1).contiguous()
        return key, value


class StepWeights:
    """Weights of a decoder step as its matrix products want them.

    Parameters
    ----------
    network
        With proxies.
    """

    def __init__(self, network: PointingNetwork) -> None:
        decoder, assignment, head = network.decoder, network.assignment, network.head
        self.layers = [LayerWeights(layer) for layer in decoder.stack.layers]
        self.strength = torch.cat([layer.memory_attention.strength for layer in decoder.stack.layers])[:, None, None]
        norm: Any = decoder.stack.norm
        self.norm = (norm.weight, norm.bias, norm.eps)
        pointer = decoder.pointer
        self.pointer_width = pointer.hidden_width
        self.pointer_state = _linear(pointer.state, pointer.hidden_width**-0.5)
        self.pointer_token, self.pointer_offset = pointer.token, pointer.offset[:, None, None]
        self.eos = TwoLayers(pointer.eos)
        self.query = TwoLayers(assignment.query)
        pairs = assignment.pair_logits
        self.pair_query = _linear(pairs.query)
        self.delta_features = pairs.delta_features
        self.pair_geometry = _pair_weights(pairs.geometry.weight, delta_features=pairs.delta_features)
        number = self.pair_geometry.new_tensor
        self.exp_scale = number([-1 / 10, -1 / 50, -1 / 50, -1 / 0.02, -1.0][: 4 + pairs.delta_features])[:, None]
        self.log_scale, self.log_offset = number([1 / 10, 1.0])[:, None], number([1.0, 1e-3])[:, None]
        self.one, self.min_unassigned = number(1.0), number(MIN_UNASSIGNED)
        self.min_cosine = torch.tensor(assignment.min_cosine, dtype=torch.float64)
        self.inverse_width, self.eps_energy = number(1.0 / MIN_UNASSIGNED_WIDTH), number(1e-3)
        self.one_plus_eps = number(1.0 + EPS_UNASSIGNED)
        self.pair_hidden = _linear(pairs.out[0])  # type: ignore[arg-type]
        self.pair_out = _linear(pairs.out[-1])  # type: ignore[arg-type]
        self.describe = TwoLayers(head.describe)
        self.masses, self.charged = head.get_buffer("masses").tolist(), head.get_buffer("charged").tolist()
        heads = _linear(head.identity), _linear(head.correct)
        self.head = (torch.cat([bias for bias, _ in heads]), torch.cat([weight for _, weight in heads], dim=1))
        self.embed_particle = TwoLayers(decoder.embed_particle)
        parts = (self.embed_particle.weight, decoder.embed_seed.weight.t(), decoder.embed_pooled.weight.t())
        self.embed = (self.embed_particle.bias, torch.cat(parts))


class EventDecoder:
    """Decoder state of one event.

    Parameters
    ----------
    network
        With proxies.
    source
        Encoded source of a batch of one event.
    tokens, items : int64 [S], [M]
        Its real tokens and items.
    decoding
        When decoding stops.
    """

    def __init__(
        self,
        network: PointingNetwork,
        source: EncodedSource,
        tokens: Tensor,
        items: Tensor,
        decoding: PointingDecodingConfig,
    ) -> None:
        scene = source.scene
        weights = StepWeights(network)
        self.network, self.weights, self.decoding = network, weights, decoding
        self.min_deposit = decoding.min_deposit_fraction * math.exp(network.min_log_energy)  # GeV
        self.states = source.states[0, tokens]  # [S, W]
        self.n_hits = int((items < scene.n_hits).sum())
        n_tokens, n_items, width = len(tokens), len(items), self.states.shape[1]
        self.first_track = n_tokens - (n_items - self.n_hits)  # tracks are the last of the tokens as of the items
        self.memory = [layer.memory(self.states) for layer in weights.layers]
        self.pointer_keys = weights.pointer_token(self.states).t().contiguous().view(3, weights.pointer_width, -1)
        self._make_tables(scene, tokens, items)
        self.items = source.items[0, items]
        self.energy = scene.token_energy[0, tokens]  # [S]
        self.inverse_energy = 1.0 / self.energy.clamp(min=1e-9)
        self.cache = [
            self.states.new_empty(2, layer.heads, FIRST_STEPS, width // layer.heads) for layer in weights.layers
        ]
        self.unassigned = self.states.new_ones(n_items)
        self.assigned_weight = self.states.new_zeros(n_tokens)  # GeV
        self.logits = self.states.new_empty(n_tokens + 1)
        self.features = self.states.new_ones(len(weights.pair_geometry), n_items)
        self.pair_geometry = weights.pair_geometry.clone()
        self.pair_query = self.pair_geometry[:1]
        self.x = network.decoder.first(1)[0]  # [1, W]
        self.state = self.x
        self.n_steps = self.n_empty = 0
        self.forced = False
        self.particles: list[tuple[Particle, int, bool]] = []
        self.embedded: list[Tensor] = []
        self.query: list[Tensor] = []
        self.hit_fraction: list[Tensor] = []

    def _make_tables(self, scene: Scene, tokens: Tensor, items: Tensor) -> None:
        n_subdetectors = self.network.n_subdetectors
        position, unit = scene.item_position[0, items], scene.item_unit[0, items]
        self.item_unit = unit.double()
        x, y, z = self.item_unit.unbind(1)
        theta = torch.atan2(torch.hypot(x, y), z)
        self.item_theta = theta / 0.003
        self.item_token = (scene.token_mask[0].cumsum(0) - 1)[scene.item_token[0, items]]
        columns = (position, unit, self.item_token[:, None].to(unit.dtype))
        self.geometry = torch.cat(columns, dim=1)  # [M, 7]
        self.token_units = scene.token_unit[0, tokens]
        self.token_unit = self.token_units.tolist()
        self.token_position, self.token_axis = scene.token_position[0, tokens], scene.token_axis[0, tokens]
        token_momentum, token_charge = scene.token_momentum[0, tokens].double(), scene.token_charge[0, tokens]
        self.tracks = list(
            zip(token_momentum[self.first_track :].tolist(), token_charge[self.first_track :].tolist(), strict=True)
        )
        self.item_weight = scene.item_weight[0, items].square()  # GeV
        features = scene.item_features[0, items].double()
        subdetector = features[:, ITEM_FEATURES : ITEM_FEATURES + n_subdetectors]
        depth = features[:, LAYER : LAYER + 1] * subdetector
        is_track = (items >= scene.n_hits).double()[:, None]
        momentum = token_momentum[self.item_token] * is_track
        # What is summed over a particle's items, with their assigned fractions: energy of hits, momentum (3) of tracks,
        # its norm, charge, number of tracks and of hits.
        self.by_fraction = torch.cat(
            [
                scene.item_energy[0, items].double()[:, None],
                momentum,
                torch.linalg.vector_norm(momentum, dim=-1, keepdim=True),
                token_charge[self.item_token].double()[:, None] * is_track,
                is_track,
                1.0 - is_track,
            ],
            dim=1,
        )  # [M, 8]
        # With the items' fractions of the particle's deposit: position (3), 1, and by subdetector 1 and the layer.
        self.by_deposit = torch.cat(
            [position.double(), torch.ones_like(is_track), subdetector, depth], dim=1
        )  # [M, 4 + 2 R]

    def advance(self) -> int | None:
        """Next decoder state; the token of the next seed, or None at the end of the sequence."""
        weights, x = self.weights, self.x
        on_tokens = self.assigned_weight * self.inverse_energy  # [S]
        unassigned = weights.one - on_tokens
        log_unassigned = (weights.one_plus_eps - on_tokens).clamp_(min=EPS_UNASSIGNED).log_()
        biases = weights.strength * log_unassigned  # [layers * H, 1, S]
        for i, layer in enumerate(weights.layers):
            x = self._layer(i, layer, x, biases[i * layer.heads : (i + 1) * layer.heads])
        self.state = _norm(x, weights.norm)
        query = torch.addmm(weights.pointer_state[0], self.state, weights.pointer_state[1])
        plain, of_assigned, of_energy = torch.baddbmm(
            weights.pointer_offset, query.view(3, 1, weights.pointer_width), self.pointer_keys
        ).unbind()  # [1, S] each
        log_energy = torch.addcmul(weights.eps_energy, self.energy, unassigned).log_()
        torch.addcmul(plain.addcmul_(of_assigned, on_tokens)[0], of_energy[0], log_energy, out=self.logits[:-1])
        self.logits[-1:] = weights.eos(self.state)[0]
        pointer = self.logits.log_softmax(-1)
        self.forced = False
        ended = math.exp(pointer[-1].item()) >= self.decoding.eos_threshold
        if ended or self.n_empty >= self.decoding.max_empty_steps:
            if not self.decoding.require_all_tracks:
                return None
            tracks = (self.unassigned[self.n_hits :] > 0.5).nonzero().squeeze(1) + self.first_track
            if not len(tracks):
                return None
            self.forced = True
            return int(tracks[pointer[tracks].argmax()])
        return int(pointer[:-1].argmax())

    def _layer(self, i: int, layer: LayerWeights, x: Tensor, bias: Tensor) -> Tensor:
        """One decoder layer: x [1, W], bias [H, 1, S]."""
        heads, n_positions = layer.heads, self.n_steps + 1
        y = torch.addmm(layer.query_key_value[0], _norm(x, layer.norms[0]), layer.query_key_value[1])
        query, new = torch.split(y.view(3, heads, -1), [1, 2])
        if n_positions > self.cache[i].shape[2]:
            self.cache[i] = torch.cat([self.cache[i], torch.empty_like(self.cache[i])], dim=2)
        self.cache[i][:, :, self.n_steps] = new
        key, value = self.cache[i][:, :, :n_positions].unbind()  # [H, T, D]
        weight = torch.bmm(query.view(heads, 1, -1), key.transpose(1, 2)).softmax(-1)
        x = x + torch.addmm(layer.out[0], torch.bmm(weight, value).view(1, -1), layer.out[1])
        query = torch.addmm(layer.query[0], _norm(x, layer.norms[1]), layer.query[1])
        key, value = self.memory[i]
        weight = torch.baddbmm(bias, query.view(heads, 1, -1), key).softmax(-1)
        x = x + torch.addmm(layer.memory_out[0], torch.bmm(weight, value).view(1, -1), layer.memory_out[1])
        return x + layer.feedforward(_norm(x, layer.norms[2]))

    def emit(self, seed: int) -> None:
        """Decode the particle that starts at a token, and make it the next input."""
        weights, network = self.weights, self.network
        seed_state = self.states[seed : seed + 1]
        query = weights.query(torch.cat([self.state, seed_state], dim=1))  # [1, W]
        near = torch.mv(self.item_unit, self.item_unit.new_tensor(self.token_unit[seed])) > weights.min_cosine
        index = near.logical_and_(self.unassigned >= weights.min_unassigned).nonzero().squeeze(1)  # [P]
        fraction = self._fractions(query, seed, index)
        weight = fraction * self.item_weight.index_select(0, index)
        on_tokens = torch.zeros_like(self.assigned_weight)
        on_tokens.index_add_(0, self.item_token.index_select(0, index), weight)
        pooled = torch.mv(self.states.t(), on_tokens).div_(on_tokens.sum().clamp_(min=1e-9))[None]  # [1, W]

        sums, directions, shape = self._proxies(seed, index, fraction)
        features = query.new_tensor([proxy_features(sums, directions, shape)])
        described = gelu(weights.describe(torch.cat([query, pooled, features], dim=1)))
        outputs = torch.addmm(weights.head[0], described, weights.head[1])[0].tolist()
        n_pdg = network.head.n_pdg
        split = HeadOutputs(outputs[:n_pdg], outputs[n_pdg : n_pdg + N_CHARGE], outputs[n_pdg + N_CHARGE :])
        track = seed - self.first_track
        particle = correct(
            split,
            sums,
            directions,
            masses=weights.masses,
            charged=weights.charged,
            track=self.tracks[track] if track >= 0 else None,
        )
        self._assign(seed, index, fraction, on_tokens)
        is_particle = particle.log_energy >= network.min_log_energy
        row = self.hit_fraction[-1]
        has_track = bool((row[self.n_hits :] >= 0.5).any())
        self.n_empty = 0 if is_particle and (sums.energy >= self.min_deposit or has_track) else self.n_empty + 1
        self.x = self._embed(particle, seed_state, pooled, deposit=sums.energy, at_track=track >= 0)
        self.n_steps += 1
        self.particles.append((particle, seed, is_particle))
        self.embedded.append(self.x)
        self.query.append(query)

    def _assign(self, seed: int, index: Tensor, fraction: Tensor, on_tokens: Tensor) -> None:
        """Note what the particle has: fractions [P] of items int64 [P], and their weight on tokens [S]."""
        row = torch.zeros_like(self.unassigned).index_copy_(0, index, fraction)
        self.hit_fraction.append(row)
        if self.forced:
            row[self.n_hits + seed - self.first_track] = 1.0
        if not self.network.coverage:
            return
        if self.forced:  # a part of the track was assigned before
            row = torch.minimum(row, self.unassigned)
            on_tokens = torch.zeros_like(on_tokens).index_add_(0, self.item_token, row * self.item_weight)
        self.unassigned -= row
        self.assigned_weight += on_tokens

    def _fractions(self, query: Tensor, seed: int, index: Tensor) -> Tensor:
        """Assigned fractions float [P] of items int64 [P]."""
        weights = self.weights
        torch.addmm(weights.pair_query[0], query, weights.pair_query[1], out=self.pair_query)
        features = self.features[:, : len(index)]  # [F, P], in the order of `_pair_weights`
        rows = features.unbind()
        position, unit, token = torch.split(self.geometry.index_select(0, index), [3, 3, 1], dim=1)
        axis = self.token_axis[seed]
        offset = position - self.token_position[seed]  # mm
        along = torch.mv(offset, axis)
        torch.eq(token[:, 0], seed, out=rows[SAME_TOKEN])
        unassigned = self.unassigned.index_select(0, index)
        torch.sub(weights.one, unassigned, out=rows[KNOWN])
        torch.clamp(along, -900.0, 1500.0, out=rows[ALONG])
        torch.linalg.vector_norm(torch.addr(offset, along, axis, alpha=-1.0), dim=1, out=rows[NEAR])  # across, mm
        rows[WIDE].copy_(rows[NEAR])
        torch.abs(along, out=rows[DEPTH])
        difference = unit - self.token_units[seed]
        torch.linalg.vector_norm(difference, dim=1, out=rows[ANGLE])  # rad
        torch.addcmul(
            weights.log_offset, features[NEAR : ANGLE + 1 : 3], weights.log_scale, out=features[LOG_ACROSS:NEAR]
        ).log_()
        if weights.delta_features:
            x, y, z = self.token_unit[seed]
            rho = math.hypot(x, y)
            rows[THETA].copy_(self.item_theta.index_select(0, index).sub_(math.atan2(rho, z) / 0.003))
            torch.abs(rows[THETA], out=rows[NEAR_THETA])
            arc = 100.0 / max(rho, 1e-3)
            torch.mv(difference[:, :2], axis.new_tensor((-y * arc, x * arc)), out=rows[ARC])
            features[THETA:NEAR_THETA_ARC].asinh_()
        features[NEAR : NEAR + len(weights.exp_scale)].mul_(weights.exp_scale).exp_()
        if weights.delta_features:
            torch.abs(rows[ARC], out=rows[NEAR_THETA_ARC]).mul_(rows[NEAR_THETA])
        hidden = torch.addmm(self.items.index_select(0, index), features.t(), self.pair_geometry)
        hidden = torch.addmm(weights.pair_hidden[0], gelu(hidden), weights.pair_hidden[1])
        fraction = torch.addmm(weights.pair_out[0], gelu(hidden), weights.pair_out[1]).squeeze(1).sigmoid_()
        available = (unassigned - weights.min_unassigned).mul_(weights.inverse_width).clamp_(0.0, 1.0)
        return fraction.mul_(available).mul_(unassigned)

    def _proxies(self, seed: int, index: Tensor, fraction: Tensor) -> tuple[Sums, Directions, Shape]:
        """Sums over the items int64 [P] by their fractions [P], and what follows from them."""
        precise = fraction.double()
        values = self.by_fraction.index_select(0, index)  # [P, 8]
        energy, px, py, pz, track_energy, charge, n_tracks, n_hits = torch.mv(values.t(), precise).tolist()
        positions = self.by_deposit.index_select(0, index)  # [P, 4 + 2 R]
        weights, shower_presence = precise.new_empty(2, len(index)), presence(energy)
        deposit_fraction = torch.mul(values[:, HIT_ENERGY], precise, out=weights[0])
        deposit_fraction.mul_(shower_presence / max(energy, 1e-9))
        torch.add(deposit_fraction, 1e-12, out=weights[1]).log_().add_(LOG_WEIGHT).clamp_(min=0.0)
        linear, by_log = torch.mm(weights, positions).tolist()
        n_subdetectors = self.network.n_subdetectors
        total = max(by_log[NORM], 1e-9)
        x, y, z = linear[POSITION]
        log_x, log_y, log_z = by_log[POSITION]
        sums = Sums(
            energy=energy,
            momentum=(px, py, pz),
            track_energy=track_energy,
            charge=charge,
            n_tracks=n_tracks,
            n_hits=n_hits,
            linear_centre=(x, y, z),
            log_centre=(log_x / total, log_y / total, log_z / total),
            by_subdetector=linear[SUBDETECTORS : SUBDETECTORS + n_subdetectors],
            depth=linear[SUBDETECTORS + n_subdetectors :],
        )
        directions = proxy_directions(sums, self.token_unit[seed])
        axis = precise.new_tensor(directions.log)
        position = positions[:, POSITION]
        along = torch.mv(position, axis)
        mean_along = sum(a * b for a, b in zip((x, y, z), directions.log, strict=True))
        mean_along /= max(shower_presence, 1e-9)
        shapes = precise.new_empty(4, len(index))
        across = torch.linalg.vector_norm(torch.addr(position, along, axis, alpha=-1.0), dim=1, out=shapes[0])
        torch.sub(CORE_RADIUS, across, out=shapes[1]).div_(CORE_RADIUS_WIDTH).clamp_(0.0, 1.0)
        torch.sub(along, mean_along, out=shapes[2]).square_()
        shapes[3] = deposit_fraction
        return sums, directions, Shape(*torch.mv(shapes, deposit_fraction).tolist())

    def _embed(
        self, particle: Particle, seed_state: Tensor, pooled: Tensor, *, deposit: float, at_track: bool
    ) -> Tensor:
        """The particle as input of the decoder, float [1, W]."""
        weights = self.weights
        identity = [0.0] * (len(particle.pdg_logits) + N_CHARGE)
        identity[particle.pdg] = identity[len(particle.pdg_logits) + particle.charge] = 1.0
        log_energy = particle.log_energy
        continuous = [
            log_energy / 2.0,
            min(max(math.log(deposit + 0.05) - log_energy, -4.0), 4.0),
            math.log(deposit + 1e-3) / 2.0,
            float(at_track),
        ]
        features = seed_state.new_tensor([[*identity, *continuous, *particle.direction]])
        hidden = weights.embed_particle.hidden(features)
        return torch.addmm(weights.embed[0], torch.cat([hidden, seed_state, pooled], dim=1), weights.embed[1])

    def columns(self) -> dict[str, Tensor]:
        """What was decoded, [T, ...]; see `pflow.model.pointing.head.Particles.columns`."""
        n, width = len(self.particles), self.states.shape[1]
        particles = [particle for particle, _, _ in self.particles]

        def numbers(name: str, *shape: int, dtype: torch.dtype = self.states.dtype) -> Tensor:
            return torch.tensor([getattr(particle, name) for particle in particles], dtype=dtype).view(n, *shape)

        return {
            "is_particle": torch.tensor([is_particle for *_, is_particle in self.particles], dtype=torch.bool),
            "seed": torch.tensor([seed for _, seed, _ in self.particles], dtype=torch.int64),
            "embedded": torch.cat([self.x[:0], *self.embedded]).view(n, width),
            "query": torch.cat([self.x[:0], *self.query]).view(n, width),
            "charge": numbers("charge", dtype=torch.int64),
            "pdg": numbers("pdg", dtype=torch.int64),
            "log_energy": numbers("log_energy", dtype=torch.float64),
            "direction": numbers("direction", 3, dtype=torch.float64),
            "probability": numbers("pdg_logits", self.network.head.n_pdg).softmax(-1),
            "energy_sigma": numbers("energy_sigma"),
            "direction_sigma": numbers("direction_sigma"),
            "by_track": numbers("by_track", dtype=torch.bool),
            "hit_fraction": torch.stack(self.hit_fraction) if n else self.unassigned.new_zeros(0, len(self.unassigned)),
        }


def _norm(x: Tensor, norm: tuple[Tensor, Tensor, float]) -> Tensor:
    return torch.layer_norm(x, x.shape[-1:], *norm)
