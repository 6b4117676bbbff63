"""The pointing model as a `Reconstructor`: training of both stages, and the losses, means over real particles or steps.

The first stage predicts all target particles at once (teacher forcing); the refinement is trained on decoded particles,
each matched to a target. Letters: B batch, S source tokens, M items, K tracks whose particles are decoded at the same
time (0 in a network without `parallel_tracks`), R particles that are decoded one by one or, of the refinement, targets,
T = K + R or decoded particles, P pairs, W width.
"""

from __future__ import annotations

from random import Random
from typing import ClassVar, NamedTuple

import numpy as np
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
from pflow.model.decode import change_tensors
from pflow.model.pointing.config import PointingDecodingConfig, PointingNetworkConfig, PointingTrainingConfig
from pflow.model.pointing.decoder import Assignment, PairList, PreviousParticles, candidates
from pflow.model.pointing.generate import decode_first_stage, generate
from pflow.model.pointing.geometry import EncodedSource, gather
from pflow.model.pointing.head import LN10, EnergyScale, Particles
from pflow.model.pointing.network import FIRST_STAGE, DecodedParticles, PointingNetwork, RefinedParticles

SCHEDULED_SAMPLING_PROB = 0.5  # that the earlier particles of a batch are the network's predictions, not the targets
ORDER_NOISE_STD = 0.2  # standard deviation of the noise on ln E by which the targets are ordered
MIN_OVERLAP = 0.1  # smallest common energy of a matched pair, as a fraction of the energy that one or both have
EXTRA_PARTICLES = 20  # more than the longest target sequence has, after which decoding for the refinement stops


class TeacherForcing(NamedTuple):
    """Predictions of the first stage and their targets."""

    target: Target  # the particles, in the order of the predictions
    starts: Tensor  # float [B, K], logits of whether a track starts a charged particle; its target is the mask
    is_track: Tensor  # bool [B, K], True = real track
    pointer: Tensor  # float [B, R + 1, S + 1], log probabilities of the next seed and of the end
    seed_weight: Tensor  # float [B, R, S], how suitable each token is as a seed, 0 to 1
    logits: Tensor  # float [P], of the assignment
    target_fraction: Tensor  # float [P], targets of the logits, as probabilities
    weight: Tensor  # float [P], of each pair in the loss, GeV^(1/2)
    pairs: PairList
    particles: Particles


def teacher_forcing(
    network: PointingNetwork,
    source: EncodedSource,
    target: Target,
    training: PointingTrainingConfig,
    *,
    sampling: PointingDecodingConfig | None = None,
) -> TeacherForcing:
    """Predict each particle of a target with fractions of hits and tracks after the particles before it.

    In training mode the order of the targets has noise, and some are deferred. With `sampling`, how the network
    decodes, the particles before are its own predictions (Bengio et al. 2015, scheduled sampling), so that it learns to
    recover from its own mistakes and to find what it has left out.
    """
    if network.training:
        target = reordered(target, training.deferred_target_prob, energy_std=network.energy_scale.std)
    decoder, track, k = network.decoder, source.tokens.track, 0
    if decoder.embed_track is not None:
        target, k = behind_tracks(target, source), track.shape[1]
    tables, memory, fraction = source.tables(), decoder.project(source.states), target_fractions(target)
    weight = seed_weights(fraction, target, source)[:, k:]
    batch, steps, _ = weight.shape
    is_track, starts = gather(source.tokens.is_track, track)[:, :k], weight.new_zeros(batch, 0)
    if decoder.embed_track is not None:
        of_tracks, starts = decoder.of_tracks(source, memory, is_track)

    def predict(
        previous: PreviousParticles, assigned: Tensor, started: Tensor, pdg: Tensor | None
    ) -> tuple[Tensor, Tensor, PairList, Particles, Assignment]:
        """Logits of pointers [B, R + 1, S + 1], seeds [B, T], and what they give, in one pass.

        Of the particles before, the assigned fractions [B, T + 1, M] before each position, and the tracks [B, K] that
        start particles.
        """
        embedded = decoder.embed(previous, tables).view(batch, steps, len(decoder.bos))
        x = torch.cat([decoder.bos.expand(batch, 1, -1), embedded], dim=1)
        states, logits, eos_logit = decoder(x, tables, source.on_tokens(assigned[:, k:]).flatten(), memory)
        # The last position has only to predict the end: no particle follows.
        states, mask, of_track = states[:, :-1], target.mask, None
        seed = _choose_seeds(logits[:, :-1].detach(), weight, source, random=network.training)
        if decoder.embed_track is not None:
            states, seed = torch.cat([of_tracks, states], dim=1), torch.cat([track, seed], dim=1)
            mask, of_track = torch.cat([started, mask[:, k:]], dim=1), functional.pad(started, (0, steps)).flatten()
        seed, unassigned = source.in_tables(seed), 1.0 - assigned[:, :-1]
        pairs = PairList.where(candidates(tables, seed, unassigned) & mask[..., None])
        particles, assignment = network.step(
            tables,
            states.flatten(0, 1),
            seed.flatten(),
            pairs.values(unassigned),
            pairs,
            pdg,
            started=of_track,
            dtype=torch.float32,
        )
        return torch.cat([logits, eos_logit], dim=-1), seed, pairs, particles, assignment

    seed = (weight * source.tokens.energy.sqrt()[:, None]).argmax(-1)  # [B, R]
    on_tokens, assigned = source.on_tokens(fraction[:, k:]), _before(fraction, k)
    previous = PreviousParticles(
        pdg=target.pdg[:, k:].flatten(),
        charge=target.charge[:, k:].flatten(),
        log_energy=network.energy_scale.log_energy(target.energy[:, k:]).flatten(),
        direction=target.direction[:, k:].flatten(0, 1),
        seed=source.in_tables(seed).flatten(),
        deposit=(fraction[:, k:] @ (source.items.weight * ~source.items.is_track)[..., None]).flatten(),
        pooled=(on_tokens @ source.states / on_tokens.sum(-1, keepdim=True).clamp(min=1e-9)).flatten(0, 1),
    )
    if sampling is not None:
        # Without gradients: this pass only makes the earlier particles that the next one sees.
        with torch.no_grad():  # tracks that start particles, identities, charges and items as decoding chooses them
            started = is_track & (starts.sigmoid() >= sampling.start_threshold)
            _, seed, pairs, particles, assignment = predict(previous, assigned, started, None)
        one_by_one = Particles(*(values[:, k:].flatten(0, 1) for values in particles.view(*target.mask.shape)))
        previous = one_by_one.as_previous(seed[:, k:].flatten())
        assigned = _before(pairs.dense(assignment.hit_fraction), k)
    logits, _, pairs, particles, assignment = predict(previous, assigned, target.mask[:, :k], target.pdg.flatten())
    # Targets are fractions of what is left, at most 1: own earlier particles may have taken too much.
    unassigned = 1.0 - pairs.values(assigned[:, :-1])
    return TeacherForcing(
        target=target,
        starts=starts,
        is_track=is_track,
        pointer=logits.log_softmax(-1),
        seed_weight=weight,
        logits=assignment.logits,
        target_fraction=(pairs.values(fraction) / unassigned.clamp(min=1e-3)).clamp(max=1.0),
        weight=tables.items.weight.index_select(0, pairs.item).sqrt() * unassigned,
        pairs=pairs,
        particles=particles.view(*target.mask.shape),
    )


def _choose_seeds(logits: Tensor, weight: Tensor, source: EncodedSource, *, random: bool) -> Tensor:
    """Suitable seeds int64 [B, T]: the most probable, or if `random` half of them drawn by weight and energy."""
    best = (logits + (weight + 1e-9).log()).argmax(-1)
    if not random:
        return best
    likely = weight * source.tokens.energy.sqrt()[:, None] + 1e-12
    # The same numbers as by torch.multinomial, which waits for a GPU to look whether weights are possible.
    drawn = (likely / torch.empty_like(likely).exponential_()).argmax(-1)
    return torch.where(torch.rand(best.shape, device=best.device) < 0.5, best, drawn)


def target_fractions(target: Target) -> Tensor:
    """Fractions of hits and tracks, float [B, T, M]; ValueError if the target has none."""
    if target.hit_fraction is None or target.track_fraction is None:
        raise ValueError("target: it has no fractions of hits and tracks, the targets of the assignment")
    return torch.cat([target.hit_fraction, target.track_fraction], dim=-1)


def seed_weights(fraction: Tensor, target: Target, source: EncodedSource) -> Tensor:
    """How suitable each token is as a seed of each particle, float [B, T, S] in [0, 1]; fractions are float [B, T, M].

    The seed of a charged particle with a track is its track. The seed of any other is a hit token, with a weight that
    increases with the particle's fraction of the token and with their energy; without hits it is a track.
    """
    of_token = source.assigned(fraction)  # [B, T, S]
    energy = of_token * source.tokens.energy[:, None]
    is_track = source.tokens.is_track[:, None]
    tracks = torch.where(is_track & (of_token > 0.5), energy, 0.0)
    hits = torch.where(is_track, 0.0, energy)
    charged = (target.charge != 1) & (tracks.amax(-1) > 0)
    by_track = charged | (hits.amax(-1) <= 0)
    candidate = torch.where(by_track[..., None], tracks, hits)
    strength = (candidate / candidate.amax(-1, keepdim=True).clamp(min=1e-9)).sqrt()
    return strength * of_token * target.mask[..., None]


def reordered(target: Target, deferred_prob: float, *, energy_std: float) -> Target:
    """Targets with a track first, each group by falling ln E with noise; deferred targets behind all others.

    `energy_std` is the standard deviation of log10(E / GeV), by which energies are normalised.
    """
    assert target.track_fraction is not None
    # Without the mean of the normalisation, which changes no order.
    log_energy = LN10 * energy_std * target.energy
    noise = ORDER_NOISE_STD * torch.randn_like(log_energy)
    has_track = (target.track_fraction > 0.5).any(-1) & (target.charge != 1)
    deferred = torch.rand_like(log_energy) < deferred_prob
    # The constants are so far apart that padding decides first, then deferral, then tracks, then ln E.
    key = 1e3 * has_track - 1e4 * deferred + log_energy + noise - 1e6 * ~target.mask
    return select(target, key.argsort(dim=1, descending=True))


def select(target: Target, index: Tensor) -> Target:
    """The targets with fractions of index int64 [B, T']; padding where the index is the number of targets."""

    def selected(part: Tensor) -> Tensor:  # torch 2.5 pads nothing without targets or items
        return gather(torch.cat([part, part.new_zeros(len(part), 1, *part.shape[2:])], dim=1), index)

    return Target(**{name: selected(part) for name, part in vars(target).items()})


def behind_tracks(target: Target, source: EncodedSource) -> Target:
    """The targets of the particles that tracks start, [B, K], then the other targets, [B, R], in their order.

    A track starts the charged particle of most of it, unless a track of that particle has a larger momentum; it has no
    target then, like a track of a neutral particle or of none.
    """
    assert target.track_fraction is not None
    batch, n_targets = target.mask.shape
    momentum = gather(source.tokens.energy, source.tokens.track)  # [B, K]
    # One place more takes the tracks that have no target: their index is the number of targets, which may be 0.
    of_charged = target.track_fraction * (target.charge != 1)[..., None]
    share, owner = torch.cat([of_charged, of_charged.new_zeros(batch, 1, of_charged.shape[2])], dim=1).max(1)
    owner = torch.where(share > 0.5, owner, n_targets)
    largest = momentum.new_zeros(batch, n_targets + 1).scatter_reduce(1, owner, momentum, "amax").gather(1, owner)
    owner = torch.where(momentum >= largest, owner, n_targets)
    started = target.mask.new_zeros(batch, n_targets + 1).scatter(1, owner, True)[:, :-1]
    rest = target.mask & ~started
    order = (~rest).to(torch.uint8).argsort(dim=1, stable=True)[:, : int(rest.sum(1).max())]
    order = torch.where(gather(rest, order), order, n_targets)
    return select(target, torch.cat([owner, order], dim=1))


def _before(fraction: Tensor, k: int) -> Tensor:
    """Assigned fraction of each item before each position, 0 before the first k; [B, T, M] to [B, T + 1, M]."""
    nothing = fraction.new_zeros(len(fraction), 1, fraction.shape[2])
    before = torch.cat([nothing, fraction.cumsum(1).clamp(max=1.0)], dim=1)
    before[:, :k] = 0.0
    return before


@torch.no_grad()
def decode_and_match(
    network: PointingNetwork, source: EncodedSource, target: Target, decoding: PointingDecodingConfig
) -> tuple[DecodedParticles, Target]:
    """Decode with the first stage as a reconstruction does, without dropout and in full precision, and `match`."""
    fraction = target_fractions(target)
    decoding = decoding.limited(target.mask.shape[1] + EXTRA_PARTICLES)
    precise = change_tensors(lambda part: part.float() if part.is_floating_point() else part, source)
    modes = [(module, module.training) for module in network.modules()]  # of a frozen stage they are not all the same
    network.eval()
    try:
        with torch.autocast(source.states.device.type, enabled=False):
            columns, mask, _ = decode_first_stage(network, precise, decoding)
    finally:
        for module, training in modes:
            module.training = training
    if mask.shape[1] == 0:  # one row of padding
        columns = {name: values.new_zeros(len(mask), 1, *values.shape[2:]) for name, values in columns.items()}
        mask = functional.pad(mask, (0, 1))
    return match(DecodedParticles.of(columns, mask), fraction, target, source)


def match(
    decoded: DecodedParticles, fraction: Tensor, target: Target, source: EncodedSource
) -> tuple[DecodedParticles, Target]:
    """Match each decoded particle to at most one target particle, with the largest total common energy.

    A decoded particle with the track of a target particle as its seed is matched to it. Others need `MIN_OVERLAP`: hits
    count by their energy, tracks by their momentum. `fraction`, float [B, R, M], has the targets' items. Returns the
    decoded particles, matched ones first, in the order of the targets, and the target of each, or padding.
    """
    from scipy.optimize import linear_sum_assignment  # here: its import is a tenth of the start of a reconstruction

    weight = source.items.weight[:, None]  # GeV
    common = (decoded.hit_fraction * weight) @ fraction.transpose(1, 2)  # [B, T, R]
    total = (decoded.hit_fraction * weight).sum(-1)[:, :, None] + (fraction * weight).sum(-1)[:, None] - common
    of_tokens = source.assigned(fraction).transpose(1, 2)  # [B, S, R]
    same_track = gather(source.tokens.is_track, decoded.seed)[..., None] & (gather(of_tokens, decoded.seed) > 0.5)
    possible = same_track | (common >= MIN_OVERLAP * total.clamp(min=1e-9))
    possible &= decoded.mask[..., None] & target.mask[:, None]
    # 1e6 puts the same track above any energy; 1e-6 tells a possible pair without common energy from an impossible one.
    gain = torch.where(possible, common + 1e-6 + 1e6 * same_track, 0.0).double()
    # One GPU synchronisation reads these, with the numbers of decoded particles; copying the result back needs none.
    values = torch.cat([gain, decoded.mask[..., None]], dim=-1).cpu().numpy()
    matches = np.full((len(values), 2, values.shape[1]), -1)  # decoded particle of each place, and its target, -1: none
    for event, (places, partners) in zip(values, matches, strict=True):
        possible_gain = event[: int(event[:, -1].sum()), :-1]
        rows, columns = linear_sum_assignment(possible_gain, maximize=True)
        # To complete its solution the solver takes pairs that are not possible, too.
        good = possible_gain[rows, columns] > 0
        rows, columns = rows[good], columns[good]
        by_target = columns.argsort()
        rest = np.setdiff1d(np.arange(len(event)), rows)  # not matched, then padding
        places[:], partners[: len(rows)] = np.concatenate([rows[by_target], rest]), columns[by_target]
    index, target_index = torch.from_numpy(matches).to(fraction.device, non_blocking=True).unbind(1)
    target_index = torch.where(target_index < 0, target.mask.shape[1], target_index)
    return DecodedParticles(*(gather(values, index) for values in decoded)), select(target, target_index)


LOSSES = (
    *("starts", "pointer", "eos", "assignment", "pdg", "charge", "energy", "direction"),
    *("refined_assignment", "existence", "listed_energy", "visible_energy"),  # of the refinement
)
EPS_VISIBLE = 0.1  # added to the energies of events before the logarithm, GeV
# Residuals of more standard deviations count as their logarithm: a wrong assignment is no measurement error. Linear
# tails (Huber 1964) let one photon of 50, converted in the tracker, decide the mean of all.
TAIL = 3.0


def first_stage_losses(made: TeacherForcing, energy_scale: EnergyScale) -> dict[str, Tensor]:
    """Losses of the first stage by name, unweighted scalars, with `particle_losses`.

    ``starts``, of a network with `parallel_tracks`: binary cross-entropy of whether a track starts a charged particle.
    ``pointer``: minus the logarithm of the probability of a suitable seed, each token weighted by how suitable it is.
    ``eos``: the same of the end, summed over events and divided by the number of particles like the pointer's: with
    equal weights both are the likelihood of the sequence, and the probability of the end is calibrated. ``assignment``:
    binary cross-entropy of the fraction of each item's unassigned part, weighted by the unassigned fraction times the
    square root of the energy, normalised for each particle.
    """
    mask, seed_weight, pairs = made.target.mask, made.seed_weight, made.pairs
    one_by_one = mask[:, mask.shape[1] - seed_weight.shape[1] :]  # bool [B, R]
    seed = torch.logsumexp(made.pointer[:, :-1, :-1] + seed_weight.clamp(min=1e-12).log(), dim=-1)
    last = one_by_one.sum(1)  # position of the end
    end = made.pointer[torch.arange(len(last), device=last.device), last, -1]
    cost = functional.binary_cross_entropy_with_logits(made.logits, made.target_fraction, reduction="none")
    # With 0.05 a particle that has next to nothing of its possible items does not count many times.
    norm = pairs.sums((made.weight * (made.target_fraction + 0.05))[None])
    cost = pairs.sums((made.weight * cost)[None]) / norm.clamp(min=1e-3)
    losses = {
        "pointer": -masked_mean(seed, one_by_one & (seed_weight.amax(-1) > 0)),
        "eos": -end.sum() / last.sum().clamp(min=1),
        "assignment": masked_mean(cost.view_as(mask), mask),
        **particle_losses(made.particles, made.target, energy_scale),
    }
    if n_tracks := made.starts.shape[1]:
        losses["starts"] = _binary_cross_entropy(made.starts, mask[:, :n_tracks], made.is_track)
    return losses


def refinement_losses(
    refined: RefinedParticles,
    decoded: Tensor,
    matched: Target,
    target: Target,
    source: EncodedSource,
    energy_scale: EnergyScale,
) -> dict[str, Tensor]:
    """Losses of the refinement of particles of `decode_and_match`, as of `first_stage_losses`.

    ``refined_assignment``: cross-entropy of the fractions of each item, weighted by the square root of its energy.
    ``existence``: binary cross-entropy of whether a decoded particle, bool [B, T], is matched to a target.
    ``listed_energy``: as ``energy``, of the listed particles with the energies that they have in the list.
    ``visible_energy``: absolute difference of ln E between the plain sum over the list and the sum over all targets.
    """
    pairs, true = refined.refinement.pairs, target_fractions(matched)
    weight = source.items.weight.sqrt() * source.items.mask  # float [B, M], GeV^(1/2)
    of_pairs = weight.flatten().index_select(0, pairs.item) * pairs.values(true) * refined.log_fraction
    of_none = weight * (1.0 - true.sum(1)).clamp(min=0.0) * refined.log_unassigned
    true_energy = energy_scale.log_energy(target.energy).exp().masked_fill(~target.mask, 0.0)  # GeV
    ratio = ((refined.particles.log_energy.exp() * refined.listed).sum(1) + EPS_VISIBLE) / (
        true_energy.sum(1) + EPS_VISIBLE
    )
    in_list = _of_energy(refined.particles, energy_scale.log_energy(matched.energy))
    return {
        "refined_assignment": -(of_pairs.sum() + of_none.sum()) / weight.sum().clamp(min=1e-6),
        "existence": _binary_cross_entropy(refined.refinement.existence_logit, matched.mask, decoded),
        "listed_energy": masked_mean(in_list, matched.mask & refined.listed),
        "visible_energy": ratio.log().abs().mean(),
        **particle_losses(refined.candidates, matched, energy_scale),  # each as if it exists
    }


def particle_losses(particles: Particles, target: Target, energy_scale: EnergyScale) -> dict[str, Tensor]:
    """Losses of predicted particles [B, T], means over real targets.

    ``pdg``, ``charge``: cross-entropies. ``energy``, ``direction``: negative log-likelihood of a normal distribution of
    ln E, and of the two angles in the tangent plane, with the predicted sigma and logarithmic tails.
    """
    # The root has an infinite slope at 0, where a track's direction may be the target's: the gradient would be NaN.
    angle = (particles.direction - target.direction).square().sum(-1).clamp(min=1e-14).sqrt()  # rad, if small
    angle_pull = angle * (-particles.direction_log_sigma).exp()
    # Two angles have the same sigma: its logarithm counts twice.
    costs = {
        "pdg": functional.cross_entropy(particles.pdg_logits.transpose(1, 2), target.pdg, reduction="none"),
        "charge": functional.cross_entropy(particles.charge_logits.transpose(1, 2), target.charge, reduction="none"),
        "energy": _of_energy(particles, energy_scale.log_energy(target.energy)),
        "direction": _with_tails(angle_pull) + 2.0 * particles.direction_log_sigma,
    }
    return {name: masked_mean(cost, target.mask) for name, cost in costs.items()}


def _of_energy(particles: Particles, true_log_energy: Tensor) -> Tensor:
    pull = (particles.log_energy - true_log_energy).abs() * (-particles.energy_log_sigma).exp()
    return _with_tails(pull) + particles.energy_log_sigma


def _binary_cross_entropy(logits: Tensor, truth: Tensor, mask: Tensor) -> Tensor:
    return masked_mean(functional.binary_cross_entropy_with_logits(logits, truth.float(), reduction="none"), mask)


def _with_tails(residual: Tensor) -> Tensor:
    """Half the square of residuals float [B, T], from 0; beyond `TAIL` with the same slope there, logarithmic."""
    # The clamp is for residuals near 0: where() would pass on the NaN gradient of their logarithm.
    tail = TAIL**2 * (0.5 + (residual.clamp(min=TAIL) / TAIL).log())
    return torch.where(residual <= TAIL, 0.5 * residual.square(), tail)


class PointingReconstructor(Reconstructor):
    """Network, decoding and losses of the pointing model; ValueError: inputs or options that do not belong together."""

    needs_readout = True
    gives_links: ClassVar[bool] = True
    gives_uncertainties: ClassVar[bool] = True

    def __init__(
        self,
        inputs: ModelInputs,
        *,
        network: PointingNetworkConfig = PointingNetworkConfig(),
        decoding: PointingDecodingConfig = PointingDecodingConfig(),
        training: PointingTrainingConfig = PointingTrainingConfig(),
        loss: LossConfig = LossConfig(),
    ) -> None:
        super().__init__(inputs, decoding=decoding, network=network, training=training, loss=loss)
        self.training_config = training
        self.network = PointingNetwork(inputs, network)
        self.loss_weights = loss.complete(LOSSES)
        self.own_particles = False  # drawn before each step of a training
        if self.network.refiner is not None:
            self.first_stage_modules = tuple(f"network.{name}" for name in FIRST_STAGE)

    def training_step(self, batch: Batch) -> dict[str, Tensor]:
        """Losses of the first stage with teacher forcing, of the refinement where there is one, or of both (joint)."""
        if batch.target is None:
            raise ValueError("target: the batch has none, and training needs one")
        # A first stage that is frozen computes as in a reconstruction, whose particles the refinement gets.
        frozen = not any(parameter.requires_grad for parameter in self.network.encoder.parameters())
        network, target, scale = self.network, batch.target, self.network.energy_scale
        source, decoding = network.encode(batch, precise=frozen), self.decoding_as(PointingDecodingConfig)
        first: dict[str, Tensor] = {}
        joint = self.training_config.joint and not frozen  # else the first stage's losses would train nothing
        if network.refiner is None or joint:
            sampling = decoding if self.own_particles and network.training else None
            made = teacher_forcing(network, source, target, self.training_config, sampling=sampling)
            first = with_total(first_stage_losses(made, scale), self.loss_weights)
            if network.refiner is None:
                return first
        decoded, matched = decode_and_match(network, source, target, decoding)
        refined = network.refine(
            decoded,
            source,
            existence_threshold=decoding.existence_threshold,
            pdg=matched.pdg,
            dtype=torch.float64 if frozen else torch.float32,
        )
        losses = refinement_losses(refined, decoded.mask, matched, target, source, scale)
        losses, total = with_total(losses, self.loss_weights), first.get("total", 0.0)
        # The losses of `particle_losses` have the same names in both stages.
        both = {f"first_stage_{name}" if name in losses else name: loss for name, loss in first.items()} | losses
        return {**both, "total": losses["total"] + total}

    def draw_shared(self, random: Random) -> None:
        """Draw whether the next step trains after the network's own particles, see `Reconstructor.draw_shared`."""
        self.own_particles = random.random() < SCHEDULED_SAMPLING_PROB

    def generate(self, batch: Batch, *, decoding: DecodingConfig | None = None) -> GeneratedParticles:
        """Decode the particles of each event, and refine them; see `Reconstructor.generate`."""
        return generate(self.network, batch, self.decoding_as(PointingDecodingConfig, decoding))
