"""The tokeniser: events to tokens and back, with all that is fitted on the training events; part of the checkpoint."""

from __future__ import annotations

import dataclasses
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pflow.errors import ConfigError
from pflow.event import jagged
from pflow.event.events import Events, Reconstruction, without_refused
from pflow.event.scales import SampleScales
from pflow.event.schema import PXYZ, make_particles
from pflow.physics.arrays import Index
from pflow.physics.detector import KINDS, Detector
from pflow.physics.geometry import check_described
from pflow.physics.pdg import charges, masses
from pflow.tokens.features import Moments, Normaliser, feature_columns, features_of
from pflow.tokens.particles import (
    CHARGES,
    Calibration,
    PdgVocabulary,
    charge_index,
    physical_particles,
    unknown_pdg_message,
)
from pflow.tokens.tokens import PARTS, ParticleTokens, TokenConfig, Tokens, directions, make_readout, select, targets_of


def _moments(events: Events, config: TokenConfig) -> tuple[npt.NDArray[Any], dict[str, Moments]]:
    """What a tokeniser is fitted on: the targets' |PDG|; moments of their energy, GeV, and of each part's features."""
    targets, tokens = targets_of(events, config), select(events, config).tokens
    moments = {"energy": Moments.of(("energy",), ("log10",), [targets.column("energy")])}
    for part in PARTS:
        if names := config.features(part):
            transforms = tuple(feature.transform for feature in features_of(part, names))
            moments[part] = Moments.of(names, transforms, feature_columns(tokens, part, names))
    return np.abs(targets.column("pdg")), moments


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tokeniser:
    """Token configuration, detector, vocabulary and scales, fitted on training events (`fit`) or from a checkpoint.

    `scales` has the normaliser of each part of the source, `energy` normalises the particles' log10(E / GeV).
    `sample`: of what the model was trained on, by which other events are checked; None: not known.
    """

    config: TokenConfig
    detector: Detector
    pdg: PdgVocabulary
    scales: Mapping[str, Normaliser]
    energy: Normaliser
    n_events: int
    sample: SampleScales | None = None

    def __post_init__(self) -> None:
        for part in PARTS:
            names = self.config.features(part)
            scale = self.scales.get(part)
            if (() if scale is None else scale.names) != names:
                raise ConfigError(f"the normaliser of {part} is for other features than {', '.join(names) or '(none)'}")

    @classmethod
    def fit(
        cls,
        chunks: Iterable[Events],
        config: TokenConfig | None = None,
        *,
        on_error: Literal["raise", "skip"] = "raise",
    ) -> Tokeniser:
        """Fit on chunks of training events with truth, in one pass and constant memory.

        ConfigError: no events, no target among them, or several detectors; InputError: no truth, or no values of a
        feature. With `on_error` ``skip``, events without the values of a feature are left out, with a warning.
        """
        config, detector, n = config or TokenConfig(), None, 0
        codes, total = Counter[int](), dict[str, Moments]()
        for events in chunks:
            detector = detector or events.detector
            if events.detector != detector and not config.geometry:
                names = f"'{detector.name}' and '{events.detector.name}'"
                raise ConfigError(f"training events are of two detectors, {names}")
            (pdg, moments), _ = without_refused(events, lambda some: _moments(some, config), on_error)
            for name, of_chunk in moments.items():
                total[name] = total[name] + of_chunk if name in total else of_chunk
            codes.update(pdg.tolist())
            n += len(events)
        if detector is None:
            raise ConfigError("there are no training events to fit the tokeniser on")
        if not codes:
            raise ConfigError(f"rule '{config.rule}' gives no target particle in any of {n} training events")
        return cls(
            config=config,
            detector=detector,
            pdg=PdgVocabulary.from_counts(codes, coarse=config.coarse),
            scales={part: total[part].result() for part in PARTS if part in total},
            energy=total["energy"].result(),
            n_events=n,
        )

    def merging(self, ecal_mm: float) -> Tokeniser:
        """The same with another size of merged cells, see `TokenConfig.merging`."""
        return dataclasses.replace(self, config=self.config.merging(ecal_mm))

    def encode(self, events: Events, *, truth: bool = True, warn: bool = True) -> Tokens:
        """Turn events into tokens, with the target sequence unless `truth` is False.

        InputError: what the events lack, or that they are of another detector. With `warn`, PDG codes that are not in
        the vocabulary are warned of; the result counts them in either case.
        """
        self.check_detector(events)
        config = self.config
        arrays: dict[str, npt.NDArray[Any]] = {}
        offsets: dict[str, Index] = {}
        unknown: Counter[int] = Counter()
        # From the events as they are: `select` drops the links, by which targets may be chosen.
        targets = targets_of(events, config) if truth else None
        if targets is not None:
            offsets["target"] = jagged.offsets(targets.counts)
            codes = targets.column("pdg")
            arrays["pdg"], is_unknown = self.pdg.encode(codes)
            arrays["charge"] = charge_index(targets.column("charge"))
            arrays["energy"] = self.energy.apply([targets.column("energy")])[:, 0]
            arrays["direction"] = directions(targets, events)
            unknown.update(np.abs(codes[is_unknown]).tolist())
            if warn and unknown:
                warnings.warn(unknown_pdg_message(unknown), stacklevel=2)
        selection = select(events, config)
        for part in PARTS:
            if names := config.features(part):
                arrays[part] = self.scales[part].apply(feature_columns(selection.tokens, part, names))
                offsets[part] = jagged.offsets(jagged.count(getattr(selection.tokens, part)))
        if config.readout:
            readout, bounds = make_readout(events, selection, targets, use_tracks=bool(config.track_features))
            arrays, offsets = arrays | readout, offsets | bounds
        event, entry, path = events.event, events.entry, events.path
        return Tokens(arrays=arrays, offsets=offsets, event=event, entry=entry, path=path, unknown=unknown)

    def decode(
        self,
        tokens: ParticleTokens,
        *,
        calibration: Calibration | None = None,
        event: npt.ArrayLike | None = None,
        flags: npt.ArrayLike | None = None,
    ) -> Reconstruction:
        """Turn target tokens, true or generated, into particles; see `pflow.tokens.particles.physical_particles`.

        `event` and `flags` [event] are the reconstruction's, by default numbers from 0 and no flags.
        """
        given = {name: value for name, value in vars(tokens).items() if name != "counts" and value is not None}
        listed = given.pop("listed", None)
        # Joined last: a score that the model gives replaces the probability of the code.
        as_given = {name: given.pop(name) for name in ("score", "existence") if name in given}
        given["energy"] = self.energy.invert(tokens.energy[:, np.newaxis])[:, 0]
        fields = physical_particles(**given, vocabulary=self.pdg, calibration=calibration) | as_given
        fields |= zip(PXYZ, fields.pop("momentum").T, strict=True)
        n = len(tokens.counts)
        particles = make_particles(**{key: jagged.unflatten(value, tokens.counts) for key, value in fields.items()})
        candidates = None
        if listed is not None:
            mask = jagged.unflatten(listed, tokens.counts)
            particles, candidates = particles[mask], particles[~mask]
        return Reconstruction(
            particles=particles,
            candidates=candidates,
            event=np.arange(n) if event is None else np.asarray(event, dtype=np.int64),
            flags=np.zeros(n, dtype=np.uint32) if flags is None else np.asarray(flags, dtype=np.uint32),
        )

    @property
    def model_inputs(self) -> dict[str, Any]:
        """The fields of `pflow.model.api.ModelInputs`: what a network must know of its inputs and targets."""
        codes = self.pdg.decode(np.arange(len(self.pdg)))
        return {
            "n_charge": len(CHARGES),
            "n_pdg": len(self.pdg),
            "hit_features": len(self.config.hit_features),
            "track_features": len(self.config.track_features),
            "tracker_hit_features": len(self.config.tracker_hit_features),
            "n_subdetectors": len(KINDS) if self.config.geometry else len(self.detector.calorimeters),
            "masses": tuple(masses(codes).tolist()),
            "charged": tuple((charges(codes) != 0).tolist()),
            "energy_mean": float(self.energy.mean[0]),
            "energy_std": float(self.energy.std[0]),
            "min_energy": self.config.e_min,
        }

    @property
    def reads_detector(self) -> str:
        """Name of the detector whose events it reads: the training's, or "any" that is described."""
        return "any" if self.config.geometry else self.detector.name

    def other_geometry(self, detector: Detector) -> list[str]:
        """What of a detector differs from the one of the training, among all that a trained model depends on."""
        if self.config.geometry:
            check_described(detector)
            return []
        names = ("b_field", "ecal_inner_radius", "ecal_inner_z")
        differing = [name for name in names if getattr(self.detector, name) != getattr(detector, name)]
        # In their order: a hit's subdetector is an index into the calorimeters.
        ours, theirs = ([(c.name, c.kind, c.region) for c in d.calorimeters] for d in (self.detector, detector))
        return differing if ours == theirs else [*differing, "calorimeters"]

    def check_detector(self, events: Events) -> None:
        """Refuse events of another detector than the training's, by what differs; names of collections may."""
        if differing := self.other_geometry(events.detector):
            theirs = f"these are events of '{events.detector.name}', which differs in {', '.join(differing)}"
            message = f"the model was trained on detector '{self.detector.name}' and {theirs}"
            raise events.error(message, field="detector")
