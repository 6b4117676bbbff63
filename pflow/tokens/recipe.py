"""The recipe: what source and target tokens are made of, before anything is fitted."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from pflow.errors import ConfigError, check_choice, check_fields
from pflow.event.cells import Merge
from pflow.event.truth import RULES
from pflow.tokens.features import feature_transforms
from pflow.tokens.order import check_order

__all__ = ["HIT_FEATURES", "PARTS", "Recipe"]

HIT_FEATURES = ("log_energy", "x", "y", "z")
"""What the first paper reads of a hit, with the energy as a logarithm."""

PARTS = ("hits", "tracks", "tracker_hits")
"""Parts of the events that source tokens come from."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a token is made of, before anything was fitted.

    Parameters
    ----------
    rule, e_min
        Truth rule (`pflow.event.truth.RULES`) and least energy of a target, GeV.
    order
        Order of the target sentence (`pflow.tokens.order.ORDERS`).
    hit_features, track_features, tracker_hit_features
        Names from `pflow.tokens.features.FEATURES`. Without track features tracks are not part of the source, nor do
        they make a particle a target; the same for tracker hits.
    hit_energy_min
        Hits with at most this energy, GeV, are left out.
    coarse
        Whether the PDG vocabulary holds the five classes only.
    merge
        How the hits that are left are summed into coarser cells, one token each (`pflow.event.cells.Merge`, or plain
        data for it); None: a token for each hit.
    readout
        Whether the hits and tracks also go to the model in physical units, with the targets' shares of them.

    Raises
    ------
    ConfigError
        An unknown rule, order or feature, no hit features, a negative energy, or cells that cannot be.
    """

    rule: str = "stable"
    e_min: float = 0.1
    order: str = "energy"
    hit_features: tuple[str, ...] = HIT_FEATURES
    track_features: tuple[str, ...] = ()
    tracker_hit_features: tuple[str, ...] = ()
    hit_energy_min: float = 0.0
    coarse: bool = False
    merge: Merge | None = None
    readout: bool = False

    def __post_init__(self) -> None:
        for name in ("hit_features", "track_features", "tracker_hit_features"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        check_choice(self.rule, RULES, "truth rule")
        check_order(self.order)
        if not self.hit_features:
            raise ConfigError("a token of a hit needs at least one feature")
        for part in PARTS:
            feature_transforms(part, self.features(part))
        for name in ("e_min", "hit_energy_min"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name} must be an energy of at least 0 GeV, found {getattr(self, name)}")
        object.__setattr__(self, "merge", _merge(self.merge))
        if not isinstance(self.readout, bool):
            raise ConfigError(f"readout must be true or false, found {self.readout!r}")

    def features(self, part: str) -> tuple[str, ...]:
        """Names of the features of a part: ``hits``, ``tracks`` or ``tracker_hits``."""
        names: tuple[str, ...] = getattr(self, f"{part.removesuffix('s')}_features")
        return names

    def to_dict(self) -> dict[str, Any]:
        """Plain data from which `from_dict` builds an equal recipe."""
        return {
            key: list(value) if isinstance(value, tuple) else value for key, value in dataclasses.asdict(self).items()
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Recipe:
        """Build from plain data.

        Raises
        ------
        ConfigError
            An unknown field (with its nearest matches), or one of the wrong type.
        """
        check_fields(content, [field.name for field in dataclasses.fields(cls)], "token recipe")
        try:
            return cls(**content)
        except TypeError as error:
            raise ConfigError(f"not a token recipe: {error}") from error


def _merge(content: Merge | Mapping[str, Any] | None) -> Merge | None:
    """From plain data, as it is, or none."""
    if content is None or isinstance(content, Merge):
        return content
    if not isinstance(content, Mapping):
        raise ConfigError(f"merge: expected ecal_mm, hcal_mm and layers, found {content!r}")
    check_fields(content, [field.name for field in dataclasses.fields(Merge)], "merge")
    try:
        return Merge(**content)
    except TypeError as error:
        raise ConfigError(f"merge: {error}") from error
