"""The tokeniser: everything that is fixed before training, in one frozen object that travels in the checkpoint."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.calibration.uncertainty import UncertaintyCalibration
from pflow.errors import ConfigError, InputError
from pflow.event.events import Events
from pflow.event.particles import Reconstruction
from pflow.physics.detector import Detector
from pflow.physics.pdg import charges, masses
from pflow.tokens.decode import decode
from pflow.tokens.encode import encode, select_hits, target_particles
from pflow.tokens.features import feature_matrix, feature_transforms
from pflow.tokens.recipe import PARTS, Recipe
from pflow.tokens.scale import Moments, Normaliser
from pflow.tokens.tokens import Tokens
from pflow.tokens.vocab import CHARGES, PdgVocabulary

__all__ = ["Tokeniser"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tokeniser:
    """Recipe, detector, vocabulary and normalisers: all that turns events into tokens and back.

    Made by `fit` on the training split, or from a checkpoint.

    Parameters
    ----------
    recipe
        What a token is made of.
    detector
        The detector it was fitted on.
    pdg
        The |PDG| vocabulary; that of charges is always -1, 0, +1.
    scales
        Normaliser of each part of the source (``hits``, ``tracks``, ``tracker_hits``) that the recipe asks for.
    energy
        Normaliser of the particles' energy, GeV, as log10.
    n_events
        Number of events that it was fitted on.
    widths
        Calibration of the uncertainties that a model states, fitted once it is trained (`pflow calibrate`); None: as
        they are.
    """

    recipe: Recipe
    detector: Detector
    pdg: PdgVocabulary
    scales: Mapping[str, Normaliser]
    energy: Normaliser
    n_events: int = 0
    widths: UncertaintyCalibration | None = None

    def __post_init__(self) -> None:
        for part in PARTS:
            names = self.recipe.features(part)
            scale = self.scales.get(part)
            if (() if scale is None else scale.names) != names:
                raise ConfigError(
                    f"the normaliser of {part} is not that of the features {', '.join(names) or '(none)'}"
                )

    @classmethod
    def fit(cls, chunks: Iterable[Events], recipe: Recipe | None = None) -> Tokeniser:
        """Fit on events, in one pass and constant memory: give it the training split and nothing else.

        Parameters
        ----------
        chunks
            Events with truth, all of one detector; read one after the other and not kept.
        recipe
            What tokens are made of; the default recipe if None.

        Raises
        ------
        ConfigError
            No events, no target particle among them, or events of several detectors.
        InputError
            Events without truth or without something that a feature is made of.
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
            particles = ak.flatten(target_particles(events, recipe), axis=1)
            energy.update(ak.to_numpy(particles.energy)[:, np.newaxis])
            absolute, counts = np.unique(np.abs(ak.to_numpy(particles.pdg)), return_counts=True)
            codes.update(dict(zip(absolute.tolist(), counts.tolist(), strict=True)))
            kept = select_hits(events, recipe)
            for part in parts:
                moments[part].update(feature_matrix(kept, part, recipe.features(part)))
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
        """Turn events into tokens; see `pflow.tokens.encode.encode`."""
        return encode(events, self, truth=truth, warn=warn)

    def decode(
        self,
        *,
        charge: npt.ArrayLike,
        pdg: npt.ArrayLike,
        energy: npt.ArrayLike,
        direction: npt.ArrayLike,
        mask: npt.ArrayLike,
        score: npt.ArrayLike | None = None,
        pdg_probability: npt.ArrayLike | None = None,
        energy_sigma: npt.ArrayLike | None = None,
        direction_sigma: npt.ArrayLike | None = None,
        event: npt.ArrayLike | None = None,
        flags: npt.ArrayLike | None = None,
        name: str = "PFlow",
    ) -> Reconstruction:
        """Turn target tokens, true or generated, into particles; see `pflow.tokens.decode.decode`."""
        return decode(
            self,
            charge=charge,
            pdg=pdg,
            energy=energy,
            direction=direction,
            mask=mask,
            score=score,
            pdg_probability=pdg_probability,
            energy_sigma=energy_sigma,
            direction_sigma=direction_sigma,
            event=event,
            flags=flags,
            name=name,
        )

    @property
    def sizes(self) -> dict[str, Any]:
        """What a network is built with.

        n_charge, n_pdg and the number of features of each source part; n_subdetectors; of each |PDG| code in the
        vocabulary its mass in GeV (``masses``) and whether it is charged (``charged``); mean and standard deviation of
        log10(E / GeV) of the targets (``energy_mean``, ``energy_std``), and their least energy in GeV
        (``min_energy``).
        """
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

    def check_detector(self, events: Events) -> None:
        """Return if the events are of the detector that this was fitted on.

        The field, the calorimeters' names, kinds and regions, and where the calorimeter begins must agree; the names
        of the collections in the file need not.

        Raises
        ------
        InputError
            Naming the file, both detectors and what differs.
        """
        ours, theirs = _geometry(self.detector), _geometry(events.detector)
        differing = [key for key in ours if ours[key] != theirs[key]]
        if differing:
            raise InputError(
                f"the model was trained on detector '{self.detector.name}' and these are events of "
                f"'{events.detector.name}', which differs in {', '.join(differing)}",
                file=events.path or None,
                field="detector",
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain data (JSON) from which `from_dict` builds an equal tokeniser."""
        return {
            "recipe": self.recipe.to_dict(),
            "detector": self.detector.to_dict(),
            "pdg": self.pdg.to_dict(),
            "scales": {part: scale.to_dict() for part, scale in self.scales.items()},
            "energy": self.energy.to_dict(),
            "n_events": self.n_events,
            **({} if self.widths is None else {"widths": self.widths.to_dict()}),
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Tokeniser:
        """Build from plain data.

        Raises
        ------
        ConfigError
            A field is missing or makes no tokeniser.
        """
        try:
            return cls(
                recipe=Recipe.from_dict(content["recipe"]),
                detector=Detector.from_dict(content["detector"]),
                pdg=PdgVocabulary.from_dict(content["pdg"]),
                scales={part: Normaliser.from_dict(scale) for part, scale in content["scales"].items()},
                energy=Normaliser.from_dict(content["energy"]),
                n_events=int(content["n_events"]),
                widths=UncertaintyCalibration.from_dict(content["widths"]) if "widths" in content else None,
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"not a tokeniser: {error!r}") from error


def _geometry(detector: Detector) -> dict[str, Any]:
    """What of a detector a trained model depends on."""
    return {
        "b_field": detector.b_field,
        "calorimeters": [(c.name, c.kind, c.region) for c in detector.calorimeters],
        "ecal_inner_radius": detector.ecal_inner_radius,
        "ecal_inner_z": detector.ecal_inner_z,
    }
