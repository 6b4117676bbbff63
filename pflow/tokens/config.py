"""Which tokens and targets are made from an event: chosen by the user, nothing of it is fitted."""

from __future__ import annotations

import dataclasses
from typing import Any

from pflow.config import from_plain
from pflow.errors import ConfigError, check_choice
from pflow.event.merge_hits import Merge
from pflow.event.truth import RULES, STABLE_STATUS
from pflow.tokens.features import feature_transforms

HIT_FEATURES = ("log_energy", "x", "y", "z")
"""The first paper's features of a hit, with the energy as a logarithm."""

ORDERS = ("energy", "tracks_first")
"""``energy``: decreasing energy. ``tracks_first``: charged particles that have a track, then all others, each by
decreasing energy."""

PARTS = ("hits", "tracks", "tracker_hits")
"""Parts of the events that source tokens are made of."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenConfig:
    """Which tokens and targets are made from an event; ConfigError for an option that cannot be.

    `rule`, `e_min` [GeV], `stable_status` and `invisible` are as of `pflow.event.truth.select_targets`, `order` is one
    of `ORDERS`, features are names of `pflow.tokens.features.FEATURES`. Without track features the
    source has no tracks, and a track does not make a particle a target; without tracker hit features it has no tracker
    hits. Hits with at most `hit_energy_min`, GeV, are dropped, the others summed into the cells of `merge` (or plain
    data for it), one token each; None: one token for each hit. With `coarse` the PDG vocabulary has one code for each
    of the five classes only, with `readout` the model also gets hits and tracks in physical units, and in training the
    targets' fractions of them. With `geometry` a model is for any described detector: it knows the kind of a hit's
    calorimeter and the hit's depth there (`pflow.physics.geometry`), and neither the calorimeter nor the layer.
    """

    rule: str = "stable"
    e_min: float = 0.1
    stable_status: tuple[int, ...] = STABLE_STATUS
    invisible: tuple[int, ...] = ()
    order: str = "energy"
    hit_features: tuple[str, ...] = HIT_FEATURES
    track_features: tuple[str, ...] = ()
    tracker_hit_features: tuple[str, ...] = ()
    hit_energy_min: float = 0.0
    coarse: bool = False
    merge: Merge | None = None
    readout: bool = False
    geometry: bool = False

    def __post_init__(self) -> None:
        check_choice(self.rule, RULES, "truth rule")
        check_choice(self.order, ORDERS, "target order")
        if self.merge is not None:
            object.__setattr__(self, "merge", from_plain(Merge, self.merge, where="merge"))
        if not self.hit_features:
            raise ConfigError("a token of a hit needs at least one feature")
        for part in PARTS:
            object.__setattr__(self, _field(part), tuple(self.features(part)))
            feature_transforms(part, self.features(part))
        for name in ("e_min", "hit_energy_min"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name} must be an energy of at least 0 GeV, found {getattr(self, name)}")

    @property
    def chosen_by(self) -> dict[str, Any]:
        """How targets are chosen, as options of `pflow.event.truth.select_targets`."""
        options = {name: getattr(self, name) for name in ("rule", "e_min", "stable_status", "invisible")}
        return {**options, "use_tracks": bool(self.track_features)}

    def features(self, part: str) -> tuple[str, ...]:
        """Names of the features of a part: ``hits``, ``tracks`` or ``tracker_hits``."""
        names: tuple[str, ...] = getattr(self, _field(part))
        return names


def _field(part: str) -> str:
    return f"{part.removesuffix('s')}_features"
