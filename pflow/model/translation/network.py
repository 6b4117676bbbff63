"""The first paper's networks: a Transformer from detector hits to a sequence of particles.

Its encoder reads hits alone, hits that attend to tracks, or all types as one sequence; there are two decoders. No
source token has a position, so their order changes nothing.

A regression with a squared error puts two photons at their barycentre, since the error is smallest between two possible
directions. A chosen cell cannot lie between them. So `Copier` has a pointer that chooses a cell (cross-entropy over the
cells, as over a vocabulary), an alignment trained with the true links finds the cells and tracks of the same particle
(supervised attention: Liu et al. 2016, arXiv:1609.04186), and their direction and energy are copied, with small
corrections. Cells already assigned to earlier particles are not chosen again (coverage: Tu et al. 2016,
arXiv:1601.04811); without it the second photon lands on the first.

Letters: B batch, S source length, H hits, N cells and one that pads, K tracks, M = N + K items, T target particles, D
width of the decoder, W of the encoder, n projections.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from pflow.data.batch import Batch, Readout, Target
from pflow.model.api import LOG_WEIGHT, ModelInputs, masked_mean, normalise, tangent_basis
from pflow.model.transformer import (
    Caches,
    CrossAttention,
    Encoder,
    FullyConnected,
    KeyValue,
    KVCache,
    Mask,
    Residual,
    SelfAttention,
    TransformerLayer,
    final_norm,
    initialise,
    stack,
)
from pflow.model.translation.tokens import (
    N_FRAME,
    SPECIAL,
    SourceEmbedder,
    TargetEmbedder,
    TargetTokens,
    TranslationNetworkConfig,
)

LOSSES = ("pointer", "assignment")
HIDDEN = 32  # width of the alignment's hidden layer
N_FEATURES = 11  # of `seed_features`
N_ASSIGNED_FEATURES = 10  # of the assigned items, beside their mean state
DIRECTION_UNIT = 0.01  # rad, correction of a direction for an output of 1; larger errors have a linear loss
ANGLE_UNIT = 0.003  # of angles as features, rad
WIDE = 0.03  # angle between two directions over which their feature saturates, rad
TRACK_LENGTH = 2000.0  # mm from the vertex along the momentum to the position that stands for a track
TRACK_WEIGHT = 3.0  # of tracks in the loss of the alignment: they are few, and decide the direction
MIN_UNASSIGNED = 1e-3  # smallest unassigned fraction of a cell in the pointer: its logarithm is finite
MIN_ENERGY = 1e-3  # GeV, in logarithms of energies
SOFT = 0.1  # GeV, momentum of assigned tracks above which their direction is used
FIRST_WEIGHTS = (3.0, 0.0, 0.0)  # initial logits of the weights of the three directions
OWN_PROB = 0.5  # scheduled sampling: probability that a training event uses the network's own fractions


class Items(NamedTuple):
    """Items that particles copy from: cells, the last one padding so that there is always a choice, then tracks."""

    n_cells: int
    mask: Tensor  # bool [B, M]
    energy: Tensor  # float [B, M], energy of a cell or momentum of a track, GeV
    position: Tensor  # float [B, M, 3], mm: mean of the hits', weighted by energy; of a track `TRACK_LENGTH` along it
    entry: Tensor  # float [B, M, 3], the same, but of a track where it enters the calorimeter
    states: Tensor  # float [B, M, W], encoded
    key: Tensor  # float [B, N, W], of the pointer
    hidden: Tensor  # float [B, M, HIDDEN], of the alignment


class Copied(NamedTuple):
    """Copied quantities of each particle."""

    pointer: Tensor  # float [B, T, N], log probability of each cell
    assignment: Tensor  # float [B, T, M], logit of the fraction of each item's unassigned part
    fraction: Tensor  # float [B, T, M], fraction of each item that is the particle's
    energy: Tensor  # float [B, T], log10(E / GeV), normalised
    direction: Tensor  # float [B, T, 3], unit vector


def true_fractions(batch: Batch, items: Items) -> Tensor:
    """Fractions of items of each target particle and of the end, which has none, float [B, T + 1, M].

    ValueError: the batch has no target, or a target without fractions of hits.
    """
    target, n_cells = batch.target, items.n_cells
    if target is None or batch.readout is None or target.hit_fraction is None:
        raise ValueError("target: a direction that is copied needs fractions of hits, and the batch has none")
    deposit = sum_cells(target.hit_fraction * batch.readout.energy[:, None], batch.readout, n_cells)
    true = deposit / items.energy[:, None, :n_cells].clamp(min=1e-9)
    if (n_tracks := items.mask.shape[1] - n_cells) and target.track_fraction is not None:
        of_tracks = torch.where(batch.readout.track_mask[:, None], target.track_fraction, 0.0)
        true = torch.cat([true, of_tracks], dim=-1)
    else:
        true = functional.pad(true, (0, n_tracks))
    true = torch.where(target.mask[..., None], true.clamp(0.0, 1.0), 0.0)
    return functional.pad(true, (0, 0, 0, 1))


def before(fraction: Tensor) -> Tensor:
    """Fractions of items already assigned to earlier particles, from each particle's fractions, float [B, T, M]."""
    return (fraction.cumsum(1) - fraction).clamp(0.0, 1.0)


def sum_cells(values: Tensor, readout: Readout, n_cells: int) -> Tensor:
    """Sums float [B, K, N] over the hits of each cell, of values float [B, K, H]."""
    # No product with the mask: what padding holds may be NaN, which times 0 is NaN.
    values = torch.where(readout.mask[:, None], values, 0.0)
    index = torch.where(readout.mask, readout.token, n_cells - 1)[:, None].expand_as(values)
    return values.new_zeros(*values.shape[:2], n_cells).scatter_add(2, index, values)


class Copier(nn.Module):
    """Choose a cell, and copy direction and energy from the cells and tracks of the same particle.

    Tracks are copied only if they are tokens of the same sequence (``typed``).
    """

    def __init__(self, inputs: ModelInputs, config: TranslationNetworkConfig) -> None:
        super().__init__()
        width, decoder_width = config.width, config.decoder_width
        self.energy_mean, self.energy_std = inputs.energy_mean, inputs.energy_std
        self.reads_tracks = config.source == "typed" and inputs.track_features > 0
        self.query = nn.Linear(decoder_width, width)
        self.key = nn.Linear(width, width)
        self.of_particle = nn.Linear(decoder_width + width, HIDDEN)
        self.of_item = nn.Linear(width, HIDDEN, bias=False)
        self.of_pair = nn.Linear(N_FEATURES, HIDDEN, bias=False)
        self.alignment = FullyConnected((HIDDEN, HIDDEN // 2, 1), activation=config.activation)
        sizes = (decoder_width + width + N_ASSIGNED_FEATURES, width, 6)
        self.correction = FullyConnected(sizes, activation=config.activation, initial=0.0)
        self.register_buffer("first_weights", torch.tensor(FIRST_WEIGHTS), persistent=False)

    def items(self, memory: Tensor, batch: Batch) -> Items:
        """The items of a batch with the encoded source float [B, S, W]; ValueError: it has no readout."""
        readout, n_cells = batch.readout, batch.hits.mask.shape[1] + 1
        if readout is None:
            raise ValueError("readout: the network copies from its hits, and the batch has none")
        weighted = readout.energy[:, None] * functional.pad(readout.position, (1, 0), value=1.0).transpose(1, 2)
        energy, *sums = sum_cells(weighted, readout, n_cells).unbind(1)
        position = torch.stack(sums, dim=-1) / energy.clamp(min=1e-9)[..., None]
        entry, mask = position, functional.pad(batch.hits.mask, (0, 1)) & (energy > 0)
        end = N_FRAME + n_cells - 1
        states = functional.pad(memory[:, N_FRAME:end], (0, 0, 0, 1))
        if self.reads_tracks:
            is_track = readout.track_mask
            momentum = torch.where(is_track[..., None], readout.track_momentum, 0.0)
            energy = torch.cat([energy, torch.linalg.vector_norm(momentum, dim=-1)], dim=1)
            along = TRACK_LENGTH * normalise(momentum)
            entry = torch.cat([position, torch.where(readout.entry_unknown, along, readout.track_position)], dim=1)
            position = torch.cat([position, along], dim=1)
            states = torch.cat([states, memory[:, end : end + is_track.shape[1]]], dim=1)
            mask = torch.cat([mask, is_track], dim=1)
        # For padding and empty cells: a null vector has no direction, and padding may hold anything.
        z_axis = functional.pad(position.new_zeros(2), (0, 1), value=1.0)
        position, entry = (torch.where(mask[..., None], place, z_axis) for place in (position, entry))
        states = states.to(self.query.weight.dtype)
        with torch.autocast(memory.device.type, enabled=False):
            key, hidden = self.key(states[:, :n_cells]), self.of_item(states)
        return Items(n_cells, mask, energy, position, entry, states, key, hidden)

    def forward(self, x: Tensor, items: Items, assigned: Tensor, true: Tensor | None = None) -> Copied:
        """Copy for particles with decoder states float [B, T, D].

        `assigned`, float [B, T, M], is the fraction of each item that earlier particles have. With teacher forcing,
        `true` has the particle's fractions: if the chosen cell is not the particle's, its most energetic cell is used.
        """
        with torch.autocast(x.device.type, enabled=False):
            x, unassigned = x.to(items.key.dtype), (1.0 - assigned).clamp(min=0.0)
            n_cells = items.n_cells
            logits = (self.query(x) @ items.key.transpose(1, 2)).float() / items.key.shape[-1] ** 0.5
            logits = logits + unassigned[..., :n_cells].clamp(min=MIN_UNASSIGNED).log()
            # Finite: of an event without hits all cells are masked, and minus infinity everywhere would give NaN.
            pointer = logits.masked_fill(~items.mask[:, None, :n_cells], -1e9).log_softmax(-1)
            seed = pointer.argmax(-1)
            if true is not None:
                of_cells = true[..., :n_cells]
                wrong = (of_cells.gather(2, seed[..., None])[..., 0] <= 0.5) & (of_cells.amax(-1) > 0)
                seed = torch.where(wrong, (of_cells * items.energy[:, None, :n_cells]).argmax(-1), seed)
            start = _of_seeds(items.position, seed)
            particle = torch.cat([x, _of_seeds(items.states, seed)], dim=-1)
            features = self.of_pair(seed_features(start, items).to(x.dtype))
            hidden = self.of_particle(particle)[:, :, None] + items.hidden[:, None] + features
            assignment = self.alignment(hidden.relu())[..., 0].float()
            fraction = assignment.sigmoid() * unassigned * items.mask[:, None]
            # Detached, as in the pointing network: an assignment is to be right, not to give the right energy.
            energy, direction = self._measure(x, items, fraction.detach(), start)
            return Copied(pointer, assignment, fraction, energy, direction)

    def _measure(self, x: Tensor, items: Items, fraction: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        """Normalised log10 E and unit vectors of particles, from the items' fractions and the seeds at `start`.

        The log-weighted barycentre is the best direction of most photons. The field separates the electrons of a
        converted photon by angles proportional to 1 / E: then the energy-weighted mean is better or, where their tracks
        are known, the sum of their momenta.
        """
        n_cells, unit = items.n_cells, normalise(items.position)
        deposit = fraction * items.energy[:, None]
        energy, momentum = (part.sum(-1, keepdim=True) for part in deposit.tensor_split([n_cells], dim=-1))
        share = deposit[..., :n_cells] / energy.clamp(min=1e-9)
        weight = (LOG_WEIGHT + (share + 1e-12).log()).clamp(min=0.0)
        # The small terms are fallbacks if nothing is assigned: the seed, or the previous estimate.
        direction = normalise(weight @ items.position[:, :n_cells] + 1e-6 * start)
        mean = normalise(share @ unit[:, :n_cells] + 1e-9 * start)
        along_tracks = normalise(deposit[..., n_cells:] @ unit[:, n_cells:] + 1e-6 * direction)
        off = torch.stack([torch.zeros_like(direction), mean - direction, along_tracks - direction], dim=-1)
        basis = torch.stack(tangent_basis(direction), dim=-1)  # [B, T, 3, 2]
        size = torch.linalg.vector_norm(off[..., 1:], dim=-2)
        angles = torch.cat([(basis.transpose(2, 3) @ off[..., 1:]).flatten(2), size], dim=-1) / ANGLE_UNIT
        log_energy = (energy.clamp(min=MIN_ENERGY).log10() - self.energy_mean) / self.energy_std
        log_ratio = ((momentum + SOFT) / (energy + SOFT)).log()
        features = torch.cat([log_energy, angles.asinh(), (size / WIDE).tanh(), log_ratio], dim=-1)
        known = torch.cat([x, share.to(x.dtype) @ items.states[:, :n_cells], features.to(x.dtype)], dim=-1)
        of_energy, weights, shift = self.correction(known).float().split_with_sizes([1, 3, 2], dim=-1)
        has_tracks = functional.pad((momentum / (momentum + SOFT) + 1e-9).log(), (2, 0))
        weights = (weights + self.first_weights + has_tracks).softmax(-1)
        shifts = (off @ weights[..., None] + DIRECTION_UNIT * basis @ shift[..., None])[..., 0]
        return (log_energy + of_energy)[..., 0], normalise(direction + shifts)


def _of_seeds(values: Tensor, seed: Tensor) -> Tensor:
    """Values [B, T, F] of the cells int64 [B, T], of [B, M, F]."""
    return values.gather(1, seed[..., None].expand(-1, -1, values.shape[-1]))


def seed_features(start: Tensor, items: Items) -> Tensor:
    """Features of items relative to seeds at `start`, float [B, T, 3] in mm; float [B, T, M, N_FEATURES] of order 1.

    Angle from the seed: logarithm, exponentials, and components in polar angle and azimuth; closeness to the seed's
    polar angle, where the second shower of a converted photon is; depth, energy, whether the item is a track, and
    logarithm and exponential of the angle to where a track enters the calorimeter.
    """
    axis, unit = normalise(start), normalise(items.position)
    off = unit[:, None] - axis[:, :, None]
    theta, phi = ((off * along[:, :, None]).sum(-1) for along in tangent_basis(axis))
    angle = torch.hypot(theta, phi)
    depth = ((items.position[:, None] - start[:, :, None]) * axis[:, :, None]).sum(-1) / 100.0
    azimuth = (phi / DIRECTION_UNIT).asinh()
    from_entry = torch.linalg.vector_norm(normalise(items.entry)[:, None] - axis[:, :, None], dim=-1)
    is_track = (torch.ones_like(items.energy).cumsum(1) > items.n_cells).to(angle.dtype)
    features = [
        (angle + 1e-3).log() / 2.0,
        (-angle / DIRECTION_UNIT).exp(),
        (-angle / (3.0 * DIRECTION_UNIT)).exp(),
        (theta / DIRECTION_UNIT).asinh(),
        azimuth,
        azimuth.abs() * (-2.0 * theta.abs() / DIRECTION_UNIT).exp(),
        depth.clamp(-3.0, 5.0),
        ((items.energy + 1e-4).log() / 2.0)[:, None].expand_as(angle),
        is_track[:, None].expand_as(angle),
        (from_entry + 1e-3).log() / 2.0,
        (-from_entry / DIRECTION_UNIT).exp(),
    ]
    return torch.stack(features, dim=-1)


def copy_losses(prediction: Mapping[str, Tensor], target: Target) -> dict[str, Tensor]:
    """Losses by name of what `TranslationNetwork.forward` copies, means over real particles that have cells.

    ``pointer``: cross-entropy with the shares of the particle's energy in the cells. ``assignment``: binary
    cross-entropy of the fraction of each item's unassigned part, weighted by the unassigned fraction times the square
    root of the energy, of tracks times `TRACK_WEIGHT`, normalised for each particle. ``energy``: square error of the
    normalised log10 E. ``direction``: squared error of the unit vector / `DIRECTION_UNIT`, linear where a component is
    above 1.
    """
    item_energy, n_cells = prediction["item_energy"][:, None], prediction["pointer"].shape[-1]
    names = ("true", "assigned", "pointer", "assignment", "energy", "direction")
    true, assigned, pointer, assignment, energy, direction = (prediction[name][:, :-1] for name in names)  # without eos
    unassigned, deposit = 1.0 - assigned, (true * item_energy)[..., :n_cells]
    total = deposit.sum(-1, keepdim=True)
    has_cells = target.mask & (total[..., 0] > 0)
    weight = item_energy.sqrt() * unassigned
    weight[..., n_cells:] *= TRACK_WEIGHT
    goal = (true / unassigned.clamp(min=MIN_UNASSIGNED)).clamp(0.0, 1.0)
    cost = functional.binary_cross_entropy_with_logits(assignment, goal, reduction="none")
    # Masked before the loss: a mask behind it would let NaN gradients of padding pass.
    off = torch.where(has_cells[..., None], direction - target.direction, 0.0) / DIRECTION_UNIT
    costs = {
        "pointer": -(deposit / total.clamp(min=1e-9) * pointer).sum(-1),
        "assignment": (weight * cost).sum(-1) / (weight * (goal + 0.05)).sum(-1).clamp(min=1e-3),
        "energy": torch.where(has_cells, energy - target.energy, 0.0).square(),
        "direction": functional.smooth_l1_loss(off, torch.zeros_like(off), reduction="none").sum(-1),
    }
    return {name: masked_mean(cost, has_cells) for name, cost in costs.items()}


def standard_layer(config: TranslationNetworkConfig, *, memory: bool = True) -> TransformerLayer:
    """A layer of tokens, with attention to a `memory` of the encoder's width if it has one."""
    return TransformerLayer(
        SelfAttention(width=config.width, heads=config.heads),
        CrossAttention(width=config.width, heads=config.heads) if memory else None,
        width=config.width,
        feedforward=config.feedforward,
        style=config.style,
    )


class Source(nn.Module):
    """Hits, with bos and eos, in one sequence with the other types; ``cross``: hits attend to the tracks instead."""

    def __init__(self, inputs: ModelInputs, config: TranslationNetworkConfig) -> None:
        super().__init__()
        others = {"tracks": inputs.track_features, "tracker_hits": inputs.tracker_hit_features}
        self.hits = SourceEmbedder(features=inputs.hit_features, config=config)
        self.tracks = None
        if config.source == "cross":
            self.tracks = SourceEmbedder(features=others.pop("tracks"), config=config)
        embedders = {n: SourceEmbedder(features=f, config=config, framed=False) for n, f in others.items() if f}
        self.others = nn.ModuleDict(embedders)
        layers = (standard_layer(config, memory=config.source == "cross") for _ in range(config.encoder_layers))
        self.encoder = Encoder(layers, width=config.width, style=config.style)

    def forward(self, batch: Batch) -> tuple[Tensor, Mask]:
        """Encoded tokens of `batch`, float [B, S, W], and their mask; ValueError if it lacks a type that is read."""
        tracks = {} if self.tracks is None else {"tracks": self.tracks}
        parts: list[tuple[Tensor, Mask]] = []
        for name, embed in {**tracks, "hits": self.hits, **dict(self.others.items())}.items():
            tokens = getattr(batch, name)
            if tokens is None:
                raise ValueError(f"{name}: the network reads them and the batch has none")
            parts.append(embed(tokens))
        memory, memory_mask = parts.pop(0) if tracks else (None, None)
        x = torch.cat([tokens for tokens, _ in parts], dim=1)
        mask = None
        # Without padding there is no mask, so that attention keeps its faster kernels.
        if any(mask is not None for _, mask in parts):
            masks = [torch.ones_like(x[..., 0], dtype=torch.bool) if m is None else m for x, m in parts]
            mask = torch.cat(masks, dim=1)
        return self.encoder(x, mask=mask, memory=memory, memory_mask=memory_mask), mask


class MultiProjectionLayer(nn.Module):
    """Project to n narrow sequences, apply a standard decoder layer to each, join, and mix."""

    def __init__(self, config: TranslationNetworkConfig) -> None:
        super().__init__()
        width, style = config.decoder_width, config.style
        self.projections = nn.Linear(width, width)  # the n maps W -> W / n, fused
        self.branches = stack(standard_layer(config) for _ in range(config.n_projections or 0))
        self.feedforward = FullyConnected(
            (width, 2 * width, width), activation=style.activation, dropout=style.hidden_dropout
        )
        self.branches_residual = Residual(width=width, style=style)
        self.feedforward_residual = Residual(width=width, style=style)

    def forward(
        self, x: Tensor, memory: Sequence[KeyValue], *, cache: Sequence[KVCache | None], **context: Any
    ) -> Tensor:
        """As `TransformerLayer.forward`, with a memory and a cache for each projection."""

        def apply_branches(y: Tensor) -> Tensor:
            parts = self.projections(y).chunk(len(self.branches), dim=-1)  # [B, T, W] -> n of [B, T, W / n]
            decoded = [
                branch(part, known, cache=past, **context)
                for branch, part, known, past in zip(self.branches, parts, memory, cache, strict=True)
            ]
            return torch.cat(decoded, dim=-1)

        x = self.branches_residual(x, apply_branches)
        return self.feedforward_residual(x, self.feedforward)  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """A stack of standard decoder layers (version 1), or of multi-projection layers (version 2).

    In version 2 the target is n times as wide as the memory, and each layer decodes its n projections separately.
    """

    def __init__(self, config: TranslationNetworkConfig) -> None:
        super().__init__()
        self.n_projections = config.n_projections
        make_layer = standard_layer if config.n_projections is None else MultiProjectionLayer
        self.layers = stack(make_layer(config) for _ in range(config.decoder_layers))
        self.norm = final_norm(width=config.decoder_width, style=config.style)

    def project(self, memory: Tensor) -> list[KeyValue]:
        """Keys and values of `memory`, float [B, S, memory width], one pair a standard decoder layer."""
        standard: list[Any] = list(self.layers)
        if self.n_projections is not None:
            standard = [branch for layer in standard for branch in layer.branches]
        return [layer.memory_attention.project(memory) for layer in standard]

    def forward(
        self, x: Tensor, memory: Sequence[KeyValue], *, memory_mask: Mask = None, caches: Caches = None
    ) -> Tensor:
        """Decode x, float [B, T, W], with a memory from `project`; there is one cache a standard decoder layer."""
        past = caches if caches is not None else [None] * len(memory)
        n = self.n_projections
        for i, layer in enumerate(self.layers):
            index = i if n is None else slice(i * n, (i + 1) * n)
            x = layer(x, memory[index], memory_mask=memory_mask, causal=True, cache=past[index])
        return self.norm(x)  # type: ignore[no-any-return]


class Heads(nn.Module):
    """Linear maps to the logits of each classifier and, unless `Copier` gives them, to log10 E and a direction.

    The energy is normalised; the direction is theta and phi, or a vector. Theta is pi/2 + output: at the poles, where a
    network with small outputs would otherwise start, phi gets no gradient. The angles are returned as a unit vector,
    which has no jump at 2 pi. Heads stay in the weights' own precision under autocast: bfloat16 resolves an angle of 3
    rad to half a degree.
    """

    def __init__(self, *, classes: Mapping[str, int], width: int, direction: str = "angles") -> None:
        super().__init__()
        self.classifiers = nn.ModuleDict({name: FullyConnected((width, n)) for name, n in classes.items()})
        outputs = {"angles": 3, "vector": 4, "copied": 0}[direction]
        self.continuous = FullyConnected((width, outputs)) if outputs else None

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Of x float [B, T, W]: logits [B, T, V] of each classifier, ``energy`` [B, T] and ``direction`` [B, T, 3]."""
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(next(self.parameters()).dtype)
            prediction = {name: head(x) for name, head in self.classifiers.items()}
            if self.continuous is None:
                return prediction
            energy, *place = self.continuous(x).float().unbind(-1)
            if len(place) == 2:
                theta, phi = place
                theta = theta + torch.pi / 2
                direction = torch.stack([theta.sin() * phi.cos(), theta.sin() * phi.sin(), theta.cos()], dim=-1)
            else:
                direction = functional.normalize(torch.stack(place, dim=-1), dim=-1)
        return {**prediction, "energy": energy, "direction": direction}


class TranslationNetwork(nn.Module):
    """Encoder-decoder Transformer from hits (and tracks) to a sequence of particles."""

    def __init__(self, inputs: ModelInputs, config: TranslationNetworkConfig) -> None:
        super().__init__()
        config.check_inputs(inputs)
        self.special = SPECIAL[config.special]
        self.source = Source(inputs, config)
        self.target = TargetEmbedder(n_charge=inputs.n_charge, n_pdg=inputs.n_pdg, config=config)
        self.decoder = Decoder(config)
        offset = self.special.offset
        classes = {"charge": inputs.n_charge + offset, "pdg": inputs.n_pdg + offset, **self.special.heads}
        self.heads = Heads(classes=classes, width=config.decoder_width, direction=config.direction)
        self.copy = Copier(inputs, config) if config.direction == "copied" else None
        initialise(self)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Predict each next token after the target tokens before it (teacher forcing).

        At each of T + 1 positions, for the token after bos, the first particle, ..., the last: ``charge`` and ``pdg``,
        logits [B, T + 1, V] over the physical classes behind the special ones; ``energy`` [B, T + 1], log10 E
        normalised; ``direction`` [B, T + 1, 3], unit vector; with special tokens by kind ``kind``, logits [B, T + 1,
        4]; where directions are copied the fields of `Copied`, ``item_energy``, and of the items ``true`` fractions and
        those ``assigned`` to earlier particles, [B, T + 1, M]. ValueError: the batch has no target, or lacks a source
        that the network reads.
        """
        if batch.target is None:
            raise ValueError("target: the batch has none, and training needs one")
        memory, mask = self.source(batch)
        x = self.target(TargetTokens.teacher(batch.target))
        x = self.decoder(x, self.decoder.project(memory), memory_mask=mask)
        prediction: dict[str, Tensor] = self.heads(x)
        if self.copy is not None:
            items = self.copy.items(memory, batch)
            true = true_fractions(batch, items)
            assigned = before(true)
            if self.training:
                # Scheduled sampling (Bengio et al. 2015, arXiv:1506.03099): this pass only says what the next one sees
                # as assigned to earlier particles.
                with torch.no_grad():
                    own = self.copy(x, items, assigned, true).fraction
                is_own = torch.rand(len(own), 1, 1, device=own.device) < OWN_PROB
                assigned = torch.where(is_own, before(own), assigned)
            prediction |= self.copy(x, items, assigned, true)._asdict()
            prediction |= {"true": true, "assigned": assigned, "item_energy": items.energy}
        return prediction
