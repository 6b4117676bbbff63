"""What a tokeniser is fitted on: means, deviations and counts of training events, chunk by chunk."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Literal, Self

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.errors import ConfigError
from pflow.event.events import Events
from pflow.event.skipped import without_refused
from pflow.physics.detector import Detector
from pflow.tokens.config import PARTS, TokenConfig
from pflow.tokens.encode import select_hits, target_particles
from pflow.tokens.features import feature_matrix, feature_transforms
from pflow.tokens.scale import Moments

__all__ = ["Statistics"]


@dataclasses.dataclass(eq=False, kw_only=True)
class Statistics:
    """Of training events of one detector.

    Parameters
    ----------
    detector
        Theirs.
    moments
        Of the features of each part of the source.
    energy
        Of the energies of the target particles, GeV.
    codes
        How often each |PDG| is among them.
    n_events
        Number of events.
    """

    detector: Detector
    moments: dict[str, Moments]
    energy: Moments
    codes: Counter[int]
    n_events: int

    @classmethod
    def of(cls, events: Events, config: TokenConfig, *, on_error: Literal["raise", "skip"] = "raise") -> Self:
        """Statistics of a chunk of events.

        Parameters
        ----------
        events
            With truth.
        config
            Which tokens and targets are made of them.
        on_error
            For events without the values of a feature: ``raise``, or ``skip``: warn, and leave them out.

        Raises
        ------
        InputError
            Events without truth or without the values of a feature.
        """
        (particles, features), _ = without_refused(events, lambda some: _measured(some, config), on_error)
        return cls(
            detector=events.detector,
            moments={
                part: Moments(config.features(part), feature_transforms(part, config.features(part))).update(values)
                for part, values in features.items()
            },
            energy=Moments(("energy",), ("log10",)).update(ak.to_numpy(particles.energy)[:, np.newaxis]),
            codes=Counter(np.abs(ak.to_numpy(particles.pdg)).tolist()),
            n_events=len(events),
        )

    def add(self, other: Statistics) -> None:
        """Join those of other events into these.

        Raises
        ------
        ConfigError
            They are of another detector.
        """
        if other.detector != self.detector:
            raise ConfigError(
                f"training events are of two detectors, '{self.detector.name}' and '{other.detector.name}'"
            )
        for part, moments in other.moments.items():
            self.moments[part].join(moments)
        self.energy.join(other.energy)
        self.codes.update(other.codes)
        self.n_events += other.n_events


def _measured(events: Events, config: TokenConfig) -> tuple[ak.Array, dict[str, npt.NDArray[np.float64]]]:
    """Flat target particles of events, and the features of each part that the configuration asks for."""
    particles = ak.flatten(target_particles(events, config), axis=1)
    kept = select_hits(events, config)
    parts = [part for part in PARTS if config.features(part)]
    return particles, {part: feature_matrix(kept, part, config.features(part)) for part in parts}
