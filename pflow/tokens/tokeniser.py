"""The tokeniser: events to tokens and back, with all that is fitted on the training events; part of the checkpoint."""

from __future__ import annotations

import dataclasses
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.calibration.uncertainty import UncertaintyCalibration
from pflow.errors import ConfigError, InputError
from pflow.event.events import Events
from pflow.event.particles import Reconstruction
from pflow.event.refused import BadEntriesWarning, refused_message, without_refused
from pflow.physics.detector import Detector
from pflow.physics.pdg import charges, masses
from pflow.tokens.decode import decode
from pflow.tokens.encode import encode, select_hits, target_particles
from pflow.tokens.features import feature_matrix, feature_transforms
from pflow.tokens.recipe import PARTS, Recipe
from pflow.tokens.scale import Moments, Normaliser
from pflow.tokens.tokens import ParticleTokens, Tokens
from pflow.tokens.vocab import CHARGES, PdgVocabulary

__all__ = ["Tokeniser"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tokeniser:
    """Recipe, detector, vocabulary and normalisers, fitted on the training events (`fit`) or read from a checkpoint.

    Parameters
    ----------
    recipe
        Which tokens and targets are made from an event.
    detector
        The detector of the training events.
    pdg
        The |PDG| vocabulary; that of charges is always -1, 0, +1.
    scales
        Normaliser of each part of the source (``hits``, ``tracks``, ``tracker_hits``) that the recipe asks for.
    energy
        Normaliser of the particles' energy, GeV, as log10.
    n_events
        Number of training events.

    Raises
    ------
    ConfigError
        A normaliser of other features than the recipe's.
    """

    recipe: Recipe
    detector: Detector
    pdg: PdgVocabulary
    scales: Mapping[str, Normaliser]
    energy: Normaliser
    n_events: int

    def __post_init__(self) -> None:
        for part in PARTS:
            names = self.recipe.features(part)
            scale = self.scales.get(part)
            if (() if scale is None else scale.names) != names:
                raise ConfigError(
                    f"the normaliser of {part} is not that of the features {', '.join(names) or '(none)'}"
                )

    @classmethod
    def fit(
        cls,
        chunks: Iterable[Events],
        recipe: Recipe | None = None,
        *,
        on_error: Literal["raise", "skip"] = "raise",
    ) -> Tokeniser:
        """Fit on training events, in one pass and constant memory.

        Parameters
        ----------
        chunks
            Events with truth, all of one detector.
        recipe
            Which tokens and targets to make; default: `Recipe()`.
        on_error
            For events without the values of a feature: ``raise``, or ``skip``: warn, and fit without them.

        Raises
        ------
        ConfigError
            No events, no target particle among them, or events of several detectors.
        InputError
            Events without truth or without the values of a feature.
        """
        recipe = Recipe() if recipe is None else recipe
        parts = [part for part in PARTS if recipe.features(part)]
        moments = {
            part: Moments(recipe.features(part), feature_transforms(part, recipe.features(part))) for part in parts
        }
        energy = Moments(("energy",), ("log10",))
        codes: Counter[int] = Counter()
        detector = None
        n_events = 0
        for events in chunks:
            if detector is not None and events.detector != detector:
                raise ConfigError(
                    f"training events are of two detectors, '{detector.name}' and '{events.detector.name}'"
                )
            detector = events.detector
            n_events += len(events)
            if on_error == "raise":
                particles, features = _measured(events, recipe, parts)
            else:
                (particles, features), _, errors = without_refused(events, lambda some: _measured(some, recipe, parts))
                if errors:
                    warnings.warn(refused_message(errors, len(events)), BadEntriesWarning, stacklevel=2)
            energy.update(ak.to_numpy(particles.energy)[:, np.newaxis])
            codes.update(np.abs(ak.to_numpy(particles.pdg)).tolist())
            for part, values in features.items():
                moments[part].update(values)
        if detector is None:
            raise ConfigError("there are no training events to fit the tokeniser on")
        if not codes:
            raise ConfigError(
                f"none of the {n_events} training events has a target particle under rule '{recipe.rule}'"
            )
        return cls(
            recipe=recipe,
            detector=detector,
            pdg=PdgVocabulary.from_counts(codes, coarse=recipe.coarse),
            scales={part: moments[part].result() for part in parts},
            energy=energy.result(),
            n_events=n_events,
        )

    def encode(self, events: Events, *, truth: bool = True, warn: bool = True) -> Tokens:
        """Turn events into tokens; see `pflow.tokens.encode.encode`.

        Raises
        ------
        InputError
            Events of another detector, or what `pflow.tokens.encode.encode` raises.
        """
        self.check_detector(events)
        return encode(events, self.recipe, scales=self.scales, pdg=self.pdg, energy=self.energy, truth=truth, warn=warn)

    def decode(
        self,
        tokens: ParticleTokens,
        *,
        calibration: UncertaintyCalibration | None = None,
        event: npt.ArrayLike | None = None,
        flags: npt.ArrayLike | None = None,
    ) -> Reconstruction:
        """Turn target tokens, true or generated, into particles; see `pflow.tokens.decode.decode`."""
        return decode(tokens, pdg=self.pdg, energy=self.energy, calibration=calibration, event=event, flags=flags)

    @property
    def model_inputs(self) -> dict[str, Any]:
        """The fields of `pflow.model.api.ModelInputs`: what a network must know of its inputs and targets."""
        codes = self.pdg.decode(np.arange(len(self.pdg)))
        return {
            "n_charge": len(CHARGES),
            "n_pdg": len(self.pdg),
            "hit_features": len(self.recipe.hit_features),
            "track_features": len(self.recipe.track_features),
            "tracker_hit_features": len(self.recipe.tracker_hit_features),
            "n_subdetectors": len(self.detector.calorimeters),
            "masses": masses(codes).tolist(),
            "charged": (charges(codes) != 0).tolist(),
            "energy_mean": float(self.energy.mean[0]),
            "energy_std": float(self.energy.std[0]),
            "min_energy": self.recipe.e_min,
        }

    def other_geometry(self, detector: Detector) -> list[str]:
        """What of a detector differs from that of the training, among all that a trained model depends on."""
        ours, theirs = _geometry(self.detector), _geometry(detector)
        return [key for key in ours if ours[key] != theirs[key]]

    def check_detector(self, events: Events) -> None:
        """Refuse events of another detector than that of the training.

        The field, the calorimeters' names, kinds and regions, and where the calorimeter begins must agree; the names
        of the collections in the file need not.

        Raises
        ------
        InputError
            Names the file, both detectors and what differs.
        """
        differing = self.other_geometry(events.detector)
        if differing:
            raise InputError(
                f"the model was trained on detector '{self.detector.name}' and these are events of "
                f"'{events.detector.name}', which differs in {', '.join(differing)}",
                file=events.path or None,
                field="detector",
            )


def _measured(
    events: Events, recipe: Recipe, parts: Sequence[str]
) -> tuple[ak.Array, dict[str, npt.NDArray[np.float64]]]:
    """Flat target particles of events, and the features of each part."""
    particles = ak.flatten(target_particles(events, recipe), axis=1)
    kept = select_hits(events, recipe)
    return particles, {part: feature_matrix(kept, part, recipe.features(part)) for part in parts}


def _geometry(detector: Detector) -> dict[str, Any]:
    """What of a detector a trained model depends on."""
    return {
        "b_field": detector.b_field,
        "calorimeters": [(c.name, c.kind, c.region) for c in detector.calorimeters],
        "ecal_inner_radius": detector.ecal_inner_radius,
        "ecal_inner_z": detector.ecal_inner_z,
    }
