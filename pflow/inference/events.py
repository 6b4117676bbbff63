"""Reconstruction of events in memory with a trained model, and the steps by which an event was decoded."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import awkward as ak
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pflow.checkpoint import TrainedModel, load_model
from pflow.data.dataset import Padder, collate, cut
from pflow.errors import ConfigError, InputError, check_choice, check_options, check_type, first_line, warn
from pflow.event import jagged
from pflow.event.checks import compare, problems, warn_of
from pflow.event.events import (
    MOST_UNUSED,
    TRUTH_OPTIONS,
    Events,
    Flag,
    ImplausibleWarning,
    LeftOutWarning,
    Reconstruction,
    count_flags,
    give_up,
    leave_out,
    without_refused,
)
from pflow.event.jagged import MIN_HIT_FRACTION, Links
from pflow.event.scales import measure
from pflow.event.schema import MAX_ENERGY
from pflow.io.open import Files, ReadOptions, geometry_fits
from pflow.model.api import DecodingConfig, GeneratedParticles
from pflow.model.pointing import PointingDecodingConfig, PointingReconstructor
from pflow.model.pointing.generate import decode_first_stage
from pflow.model.transformer import CrossAttention, SelfAttention, split_heads
from pflow.model.translation import TranslationReconstructor
from pflow.physics.arrays import Index, Mask
from pflow.physics.detector import Calorimeter, Detector
from pflow.physics.pdg import name_of
from pflow.tokens.particles import CHARGES
from pflow.tokens.tokens import ParticleTokens, TokenConfig, Tokens, kept_hits, select

BATCH_SIZE, GPU_BATCH_SIZE = 32, 256
"""Default number of events in a batch; small kernels cost a GPU as much as large ones."""

MAX_BATCH_TOKENS = 65536
"""Most source tokens in a batch, padding included; on a GPU more where its free memory holds them."""

COLUMNS = tuple(field.name for field in dataclasses.fields(ParticleTokens) if field.name != "counts")
"""Columns of generated particles that are kept."""


@functools.cache
def _one_thread_in_forks() -> None:
    """In a forked process (Python's pools on Linux up to 3.13) torch waits for ever for threads that its parent has."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=functools.partial(torch.set_num_threads, 1))


class Engine:
    """The network of a model on its device; parameters and errors as of `reconstruct`.

    Batches hold at most `batch_size` events, and at most `max_tokens` source tokens or one event.
    """

    def __init__(
        self,
        model: TrainedModel,
        *,
        device: str | torch.device = "auto",
        decoding: DecodingConfig | None = None,
        max_particles: int | None = None,
        candidates: float | None = None,
        batch_size: int | None = None,
    ) -> None:
        _one_thread_in_forks()
        self.model, self.device = model, pick_device(device)
        network = model.reconstructor
        # Only where needed: a walk through all modules costs a lone event 5% of its time.
        if network.training:
            network.eval()
        first = next(network.parameters(), None)
        if first is not None and first.device != self.device:
            network.to(self.device)
        default, self.max_tokens = batch_limits(self.device)
        self.batch_size = default if batch_size is None else batch_size
        check_options(self, "reconstruct", "a whole number of at least 1", lambda n: n >= 1 and not n % 1, "batch_size")
        self._decoding = model.reconstructor.decoding if decoding is None else decoding
        try:
            if max_particles is not None:
                self._decoding = self._decoding.limited(max_particles)
            if candidates is not None:
                self._decoding = self._decoding.with_candidates(candidates)
        except ValueError as error:
            raise ConfigError(str(error).replace("candidate_threshold", "candidates")) from error

    @torch.inference_mode()
    def collect(self, encoded: Tokens) -> ParticleCollector:
        """The generated particles of all events, in batches of events of similar length."""
        collector = ParticleCollector(len(encoded), linked=self.model.reconstructor.gives_links)
        padder = Padder([encoded])
        # Padding costs as much time as real tokens: lengths in a batch must be similar.
        longest_first = np.argsort(-encoded.n_source, kind="stable")
        order = longest_first[encoded.n_source[longest_first] > 0]
        for part in cut(encoded.n_source[order], self.batch_size, self.max_tokens):
            batch = padder.batch(order[part]).to(self.device)
            collector.add(order[part], self.model.reconstructor.generate(batch, decoding=self._decoding))
        return collector


def pick_device(device: str | torch.device) -> torch.device:
    """The device with a name, ``auto``: a GPU if torch finds one, else the CPU; ConfigError if it cannot compute."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
        torch.zeros(1, device=place).item()  # the device meta makes tensors and holds no numbers
    except Exception as error:  # each kind of device fails in its own way
        raise ConfigError(f"no device '{device}' here: {first_line(error)}") from error
    return place


def batch_limits(device: torch.device) -> tuple[int, int]:
    """Default number of events in a batch, and largest number of source tokens."""
    if device.type != "cuda":
        return BATCH_SIZE, MAX_BATCH_TOKENS
    # Free, not all memory: other processes may use the same GPU.
    free, _ = torch.cuda.mem_get_info(device)
    # 32 kB for a source token are four times what hadronic Z decays of 43 particles take.
    return GPU_BATCH_SIZE, max(MAX_BATCH_TOKENS, free // (32 << 10))


class ParticleCollector:
    """Joins the generated particles of batches of `n_events` events; if `linked`, there are links even of no batch.

    `truncated`, bool [event]: True = stopped at the maximum number of particles.
    """

    def __init__(self, n_events: int, *, linked: bool) -> None:
        none = np.zeros(0, dtype=np.int64)
        self._n_events = n_events
        self._parts: list[tuple[Index, dict[str, npt.NDArray[Any]]]] = []
        self._links: dict[str, list[tuple[npt.NDArray[Any], ...]]] = {
            name: [(none,) * 4] if linked else [] for name in ("hit_fraction", "track_fraction")
        }
        self.truncated = np.zeros(n_events, dtype=np.bool_)

    def add(self, rows: Index, generated: GeneratedParticles) -> None:
        """Add the particles of events `rows`, int64 [B]; dense fractions are too large to keep and become links."""
        self.truncated[rows] = generated.truncated.cpu().numpy()
        for name, links in self._links.items():
            if (fraction := getattr(generated, name)) is not None:
                values = _numpy(fraction)  # [B, T, N]
                row, particle, source = np.nonzero(values >= MIN_HIT_FRACTION)
                links.append((rows[row], particle, source, values[row, particle, source]))
        event = np.repeat(rows, _numpy(generated.mask.sum(1)))
        columns = {name: getattr(generated, name) for name in COLUMNS}
        real = {name: _numpy(value[generated.mask]) for name, value in columns.items() if value is not None}
        self._parts.append((event, real))

    def tokens(self) -> ParticleTokens:
        """The particles of all events, one event after the other."""
        if not self._parts:
            none, index = np.zeros(0), np.zeros(0, dtype=np.int64)
            counts = np.zeros(self._n_events, dtype=np.int64)
            return ParticleTokens(counts=counts, charge=index, pdg=index, energy=none, direction=np.zeros((0, 3)))
        event = np.concatenate([event for event, _ in self._parts])
        # Stable: the particles of an event keep the order in which they were generated.
        order = np.argsort(event, kind="stable")
        columns = {name: np.concatenate([part[name] for _, part in self._parts])[order] for name in self._parts[0][1]}
        return ParticleTokens(counts=np.bincount(event, minlength=self._n_events), **columns)

    def links(self, name: str, index: ak.Array) -> ak.Array | None:
        """Links [event, link] by source and then particle; None if the network gives no fractions of this name.

        `index`, int64 [event, source], says which hit or track of the input's entry each one of the readout is.
        """
        if not self._links[name]:
            return None
        event, particle, source, weight = (np.concatenate(part) for part in zip(*self._links[name], strict=True))
        # `np.lexsort` takes its last key as the first one.
        order = np.lexsort((particle, source, event))
        event, particle, weight = event[order], particle[order], weight[order]
        # Numbers of sources start again in each event.
        source = jagged.flat(index)[source[order] + jagged.offsets(jagged.count(index))[event]]
        return Links.by_event(event, source, particle, weight, self._n_events).records()


def _numpy(values: Tensor) -> npt.NDArray[Any]:
    # numpy has no bfloat16, which a network in mixed precision gives.
    values = values.float() if values.is_floating_point() else values
    return values.cpu().numpy()


MAX_HITS = 32768
"""Default of the largest event: attention costs the square of the number of hits."""
HITS_PER_TRACK = 16  # by memory: that of 2,000 tracks, each a possible particle, is that of 32,000 hits


def reconstruct(
    events: Events | Files,
    model: TrainedModel | str | Path,
    *,
    decoding: DecodingConfig | None = None,
    max_particles: int | None = None,
    candidates: float | None = None,
    merge_mm: float | None = None,
    max_hits: int = MAX_HITS,
    batch_size: int | None = None,
    device: str | torch.device = "auto",
    on_error: Literal["raise", "skip"] = "raise",
) -> Reconstruction:
    """Reconstruct the particles of events; truth is not used.

    Parameters
    ----------
    events, model
        Events of the detector that the model was trained on, or their files, which are read whole and as that
        detector (`pflow reconstruct` reads them in chunks); the model from `pflow.load_model`, or its argument.
    decoding
        Thresholds, and largest number of particles (cut events are flagged ``MAX_PARTICLES``); default: the model's.
    max_particles
        Largest number of particles of any event; those with a track are kept even beyond it, and then no others.
        Default: the limit of `decoding`, which may grow with the event.
    candidates
        Smallest existence probability of ``candidates``, returned beside the list; default: no candidates.
    merge_mm
        Size to which cells of the ECAL are merged before the network, mm, from the smallest to the largest of the
        model's training (`general`: 5 to 40): smaller ones tell closer photons apart, and take longer. Default: the
        model's.
    max_hits
        Largest number of hits of an event, and `HITS_PER_TRACK` times that of its tracks if the model reads them.
    batch_size
        Events in one pass of the network; default: 32, on a GPU 256, or fewer that fit its memory.
    device
        ``auto`` (a GPU if there is one), ``cpu``, ``cuda``, ``cuda:1`` ...
    on_error
        ``raise``, or ``skip``: warn, and leave an empty entry. It is flagged ``BAD_INPUT`` where most hits are
        impossible, a value that the model reads is missing or `max_hits` is exceeded, ``NOT_FINITE`` for numbers that
        are not finite. Single impossible hits and tracks are left out in either case, with a warning.

    Returns
    -------
    Reconstruction
        One entry for each event, in order; an event without hits and tracks has no particles.

    Raises
    ------
    InputError
        Events of another detector, or an event that cannot be used: names file, entry, field and what was expected.
    ConfigError
        No such device, a decoding of another architecture, a number of particles or events below 1, candidates of a
        model without a refinement, or merged cells of a size outside of the model's training.

    Examples
    --------
    >>> events = pflow.read_events("multi_test_small.root", entry_stop=2)
    >>> reconstruct(events, "general").particles.pdg.to_list()
    [[211, 22], [211, -11, 211]]
    """
    check_choice(on_error, ("raise", "skip"), "on_error")
    first = "events or files of events first, and then a model (pflow.load_model) or its name"
    if isinstance(events, TrainedModel | Reconstruction | ak.Array):
        raise TypeError(f"expected {first}; found {type(events).__name__}")
    check_type(model, TrainedModel | str | Path, first)
    model = model if isinstance(model, TrainedModel) else load_model(model)
    model = model if merge_mm is None else model.merging(merge_mm)
    if not isinstance(events, Events):
        trained_on = None if model.tokeniser.config.geometry else model.tokeniser.detector
        # The events are compared below, with the particles.
        events = ReadOptions(detector=trained_on, on_error=on_error, expected=None).read(events, truth=False)
        if trained_on is not None:
            # Nobody named a detector: that the files are of the model's is only assumed so far.
            check_geometry(events[:20], trained_on)
    ready = Engine(
        model,
        device=device,
        decoding=decoding,
        max_particles=max_particles,
        candidates=candidates,
        batch_size=batch_size,
    )
    # Impossible truth is no reason to refuse an event: it is not used.
    cleaned, left_out = leave_out(events.without_truth())
    if left_out:
        error = events.error_of(events.without_truth().violations(clones=True)[0])
        warn(f"hits or tracks cannot be used and are left out; the first: {error}", LeftOutWarning)
    usable = usable_events(cleaned, model.tokeniser.config, max_hits, on_error)
    reconstruction, _ = reconstruct_valid(usable, ready, on_error)
    scales = measure(usable.emptied((reconstruction.flags & Flag.BAD_INPUT) > 0), reconstruction.particles)
    warn_of(compare(scales, model.tokeniser.sample), events.path or "these events")
    warn_of_tracks(count_flags(reconstruction.flags), len(events), events.path or "these events")
    if "tracks" in left_out and reconstruction.track_links is not None:  # the caller's events have all of them
        index = jagged.local_index(jagged.count(events.tracks))[~left_out["tracks"]]
        links = Links.of(reconstruction.track_links)
        links = dataclasses.replace(links, source=index[links.flat_source(jagged.count(cleaned.tracks))])
        reconstruction = dataclasses.replace(reconstruction, track_links=links.records())
    config = model.tokeniser.config
    return dataclasses.replace(reconstruction, trained_with={name: getattr(config, name) for name in TRUTH_OPTIONS})


def check_geometry(events: Events, trained_on: Detector) -> None:
    """Refuse events whose ECAL hits do not lie where the model's detector has its ECAL."""
    if geometry_fits(events, trained_on) is False:
        raise events.error(
            f"the checkpoint was trained on detector '{trained_on.name}' (ECAL from r = "
            f"{trained_on.ecal_inner_radius:g} mm, |z| = {trained_on.ecal_inner_z:g} mm) and the ECAL hits of this "
            "file lie elsewhere: it is of another detector; name that one (--detector) to reconstruct it anyway",
            field="hits.position",
        )


def reconstruct_valid(events: Events, engine: Engine, on_error: str) -> tuple[Reconstruction, Index]:
    """Reconstruct events that are known to be usable; and the number of tokens of hits of each, int64 [event]."""
    model, tokeniser = engine.model, engine.model.tokeniser
    encoded, events = without_refused(events, functools.partial(tokeniser.encode, truth=False), on_error)
    collector = engine.collect(encoded)
    particles = collector.tokens()
    flags = events.flags | np.where(collector.truncated, np.uint32(Flag.MAX_PARTICLES), np.uint32(0))
    with np.errstate(over="ignore", invalid="ignore"):  # numbers that overflow are reported below
        decoded = tokeniser.decode(particles, calibration=model.calibration, event=events.event, flags=flags)
    links: dict[str, Any] = {"hit_links": collector.links("hit_fraction", kept_hits(events, tokeniser.config))}
    if events.tracks is not None:
        n_tracks = jagged.count(events.tracks)
        index = jagged.unflatten(jagged.local_index(n_tracks), n_tracks)
        links["track_links"] = collector.links("track_fraction", index)
    reconstruction = dataclasses.replace(decoded, **links)
    # An energy may be finite as the network gives it, and overflow in GeV.
    too_high = ak.to_numpy(ak.any(decoded.particles.energy > MAX_ENERGY, axis=1))
    not_finite = ~particles.finite() | ~decoded.finite() | too_high
    reconstruction = finite_events(reconstruction, not_finite, events, model.path, on_error)
    flags = reconstruction.flags.copy()
    # An event that is empty or was cut has lost its tracks for a reason that has a flag of its own.
    complete = (flags & (Flag.BAD_INPUT | Flag.MAX_PARTICLES | Flag.NOT_FINITE)) == 0
    # A model that reads no tracks cannot lose them: there is nothing to warn of.
    read = events if tokeniser.config.track_features else dataclasses.replace(events, tracks=None)
    total, neutral, lost = reconstruction.track_momentum(read).T
    flags[complete & (lost > MOST_UNUSED * total)] |= np.uint32(Flag.LOST_TRACKS)
    flags[complete & (neutral > MOST_UNUSED * total)] |= np.uint32(Flag.NEUTRAL_TRACKS)
    return dataclasses.replace(reconstruction, flags=flags), np.diff(encoded.offsets["hits"])


def warn_of_tracks(flagged: Mapping[str, int], n_events: int, where: str) -> None:
    """Warn where most of `n_events` are `flagged` (`count_flags`) for tracks in no particle, or in neutral ones."""
    for flag, place, least in (
        ("NEUTRAL_TRACKS", "neutral particles", 2),  # one event may hold a K0S or a converted photon
        ("LOST_TRACKS", "no particle", 1),
    ):
        n_flagged = flagged.get(flag, 0)
        if n_flagged >= least and 2 * n_flagged > n_events:
            text = f"more than {MOST_UNUSED:.0%} of the momentum of tracks is in {place} in {n_flagged} of {n_events}"
            text += " events: these tracks have no hits or occur twice, or the model was not trained on such events"
            warn(f"{where}: {text}", ImplausibleWarning)


def usable_events(events: Events, config: TokenConfig, max_hits: int, on_error: str, *, valid: bool = False) -> Events:
    """The events whose hits and tracks are possible (known to be, if `valid`) and not too many; others are empty.

    Any number of tracks will do for a model whose `config` reads none.
    """
    # Reversed: of several violations in an event the last one entered into `errors` stays, which is then the first.
    violations = [] if valid else reversed(events.without_truth().violations())
    errors = {violation.index: events.error_of(violation) for violation in violations}
    limits = {"tracks": (max_hits // HITS_PER_TRACK, f"max_hits / {HITS_PER_TRACK}"), "hits": (max_hits, "max_hits")}
    for part, (limit, text) in limits.items():
        records = getattr(events, part) if config.features(part) else None
        counts = np.zeros(0) if records is None else jagged.count(records)
        for index in np.flatnonzero(counts > limit).tolist():
            message = f"{counts[index]} {part}, expected at most {limit} ({text}); time and memory grow as the square"
            errors[index] = events.error(message, index=index, field=part)
    give_up([errors[index] for index in sorted(errors)], len(events), on_error)
    return events.emptied(np.isin(np.arange(len(events)), list(errors))) if errors else events


def with_detector(events: Events, detector: Detector) -> Events:
    """The events as events of the model's detector, where the user named another one to read them.

    Each hit goes to the calorimeter of the same kind and region, else of the same kind, else of the same region, else
    the last one.
    """
    hits = events.hits
    if events.detector.calorimeters != detector.calorimeters:
        counterpart = np.array([_counterpart(part, detector.calorimeters) for part in events.detector.calorimeters])
        subdetector = ak.unflatten(counterpart[jagged.flat(hits.subdetector)], jagged.count(hits))
        hits = ak.with_field(hits, subdetector, "subdetector")
    return dataclasses.replace(events, detector=detector, hits=hits)


def finite_events(
    reconstruction: Reconstruction, not_finite: Mask, events: Events, model: str, on_error: str
) -> Reconstruction:
    """Remove the particles of the events `not_finite`, bool [event], for which the model gave impossible numbers."""
    text = f"the model '{model}' gives numbers that are not finite, or above {MAX_ENERGY:g} GeV, for this event"
    if not_finite.any() and (said := problems(compare(measure(events)))):  # which is likely the reason
        text += f"; {said}"
    errors = [events.error(text, index=index) for index in np.flatnonzero(not_finite)]
    give_up(errors, len(events), on_error)
    return reconstruction.emptied(not_finite, Flag.NOT_FINITE)


def _counterpart(part: Calorimeter, parts: Sequence[Calorimeter]) -> int:
    return max(
        range(len(parts)), key=lambda i: (2 * (parts[i].kind == part.kind) + (parts[i].region == part.region), i)
    )


# Special classes by their number; the charges or PDG codes follow them.
SPECIAL = {0: (), 1: ("eos",), 2: ("particle", "end"), 3: ("pad", "bos", "eos"), 4: ("pad", "bos", "eos", "particle")}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """One step of a decoding: a particle with `energy`, GeV, or the end of the sequence (`energy` is None).

    `probability`: class probabilities by name, of a translation ``pdg``, ``charge`` and ``kind``; of a pointing model
    ``pdg``, and ``start`` (whether a further particle starts). `hits`: records with ``energy`` (GeV, as the model reads
    it) and ``position`` (mm); of a translation its cells. `weight`, float [hits]: fraction of each hit that the
    particle has; of a translation the attention of the last decoder layer, averaged over heads. `attention`, of a
    translation: float [heads, tokens] for each decoder layer, to the particles so far and, as ``memory_attention``, to
    the encoded bos, eos, cells, tracks, tracker hits.
    """

    energy: float | None
    probability: dict[str, dict[str, float]]
    hits: ak.Array
    weight: npt.NDArray[Any]
    attention: dict[str, npt.NDArray[Any]]

    def __str__(self) -> str:
        pdg = self.probability.get("pdg", {})
        name = max(pdg, key=pdg.__getitem__, default="")
        return "end" if self.energy is None else f"{name} ({pdg[name]:.2f}), {self.energy:.3g} GeV"


@torch.no_grad()
def explain(model: TrainedModel, event: Events) -> list[Step]:
    """Decoding steps of one event, e.g. ``events[3:4]``, as ``pflow.reconstruct`` decodes it, on the CPU.

    Of a pointing model these are the steps of the first stage, before the refinement; particles with a track, which are
    decoded at once, come first. ConfigError: another architecture. InputError: not exactly one event, or an event
    without tokens that the model reads.

    >>> events = pflow.read_events("gammasep_test_small.root", entry_stop=1)
    >>> print(*explain(pflow.load_model("ild-g4-photon"), events), sep="; ")
    gamma (1.00), ... GeV; ...end
    """
    check_type(model, TrainedModel, "a model of pflow.load_model first, and then an event")
    check_type(event, Events, "a model of pflow.load_model first, and then an event")
    if len(event) != 1:
        raise InputError(f"expected one event, e.g. events[3:4], found {len(event)}")
    reconstructor, tokeniser = model.reconstructor.cpu().eval(), model.tokeniser
    tokens, selection = tokeniser.encode(event, truth=False), select(event, tokeniser.config)
    if not tokens.n_source[0]:
        raise InputError("the event has no hits or tracks that the model reads")
    batch, seen = collate(tokens), defaultdict[str, list[Any]](list)  # by name, [step] each
    if isinstance(reconstructor, PointingReconstructor):
        hits, pointing = selection.hits[0], reconstructor.network
        with pointing.decoder.register_forward_hook(
            lambda _, __, output: seen["start"].append(torch.cat(output[1:], dim=1).softmax(-1)[0, -1])
        ):
            decoding = reconstructor.decoding_as(PointingDecodingConfig)
            columns, mask, _ = decode_first_stage(pointing, pointing.encode(batch), decoding)
        first = {name: values[mask] for name, values in columns.items()}
        energies = [*pointing.energy_scale.normalised(first["log_energy"]).float(), None]
        weights = [*first["hit_fraction"], torch.zeros(first["hit_fraction"].shape[-1])]
        seen["pdg"] = [*first["pdg_logits"].softmax(-1), None]
        starts = [torch.stack([1 - p, p]) for p in seen["start"]]
        seen["start"] = [*[None] * (len(energies) - len(starts)), *starts]  # tracks start particles at once, before
    elif isinstance(reconstructor, TranslationReconstructor):
        hits, network = selection.tokens.hits[0], reconstructor.network
        kinds = SelfAttention, CrossAttention
        attentions = {layer: name for name, layer in network.decoder.named_modules() if isinstance(layer, kinds)}

        def look(layer: Any, args: tuple[Any, ...], options: dict[str, Any], output: Any) -> None:
            if layer is network.heads:
                for name in network.heads.classifiers:
                    seen[name].append(output[name][0, 0].softmax(-1))
                return
            # The layers do not return their attention: it is computed again from query and key.
            if isinstance(layer, CrossAttention):
                query, key = layer.query(args[0]), args[1].key
            else:
                query, key = layer.query_key_value(args[0]).chunk(3, dim=-1)[0], options["cache"].known.key
            seen[attentions[layer]].append((split_heads(query, layer.heads) @ key.transpose(2, 3)).softmax(-1)[0, :, 0])

        # The decoding itself is watched, so that the steps cannot differ from the ones in `reconstruct`.
        with ExitStack() as hooks:
            for layer in (network.heads, *attentions):
                hooks.enter_context(layer.register_forward_hook(look, with_kwargs=True))
            particles = reconstructor.generate(batch)
        energies = [*particles.energy[0, particles.mask[0]], None]
        *_, last = (values for name, values in seen.items() if name.endswith("memory_attention"))
        weights = [attention.mean(0)[2:] for attention in last]  # behind bos and eos
    else:
        raise ConfigError(f"the steps of a {type(reconstructor).__name__} are not known")
    charges, codes = [f"{charge:+d}" if charge else "0" for charge in CHARGES], map(name_of, tokeniser.pdg.codes)
    known: dict[str, list[str]] = {"pdg": list(codes), "charge": charges, "kind": [], "start": []}
    steps = []
    for energy, weight, *parts in zip(energies, weights, *seen.values(), strict=False):
        row = {name: part.numpy() for name, part in zip(seen, parts, strict=True) if part is not None}
        if energy is not None:
            energy = float(tokeniser.energy.invert(np.array([[float(energy)]]))[0, 0])
        probability = {}
        for name in known.keys() & row.keys():
            values = row.pop(name).tolist()
            names = *SPECIAL[len(values) - len(known[name])], *known[name]
            probability[name] = dict(zip(names, values, strict=True))
        # Of a translation, tracks and tracker hits stand behind the cells.
        weight = weight[: len(hits)].numpy()
        steps.append(Step(energy=energy, probability=probability, hits=hits, weight=weight, attention=row))
    return steps
