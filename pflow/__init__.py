"""pflow: machine-learned particle-flow reconstruction, from calorimeter hits and tracks to particles."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Type checkers and editors do not see what `__getattr__` imports; `X as X` tells them that the name is public.
if TYPE_CHECKING:
    from pflow.checkpoint import load_model as load_model
    from pflow.config import shipped_models as shipped_models
    from pflow.event.events import Events as Events
    from pflow.event.events import Reconstruction as Reconstruction
    from pflow.event.schema import make_particles as make_particles
    from pflow.event.truth import select_targets as select_targets
    from pflow.inference.events import explain as explain
    from pflow.inference.events import reconstruct as reconstruct
    from pflow.inference.scan import scan as scan
    from pflow.io.open import iterate_events as iterate_events
    from pflow.io.open import open_events as open_events
    from pflow.io.open import read_events as read_events
    from pflow.io.particles_root import RecoWriter as RecoWriter
    from pflow.io.particles_root import read_reco as read_reco
    from pflow.metrics.evaluation import evaluate as evaluate
    from pflow.metrics.jets import find_jets as find_jets
    from pflow.metrics.match import HitMatching as HitMatching
    from pflow.metrics.match import Matching as Matching
    from pflow.metrics.match import match as match
    from pflow.metrics.report import EvaluationSettings as EvaluationSettings
    from pflow.physics.detector import Detector as Detector
    from pflow.physics.detector import load_detector as load_detector
    from pflow.plots.evaluation import figures as figures

_MODULES = {
    "checkpoint": ("load_model",),
    "config": ("shipped_models",),
    "event.events": ("Events", "Reconstruction"),
    "event.schema": ("make_particles",),
    "event.truth": ("select_targets",),
    "inference.events": ("explain", "reconstruct"),
    "inference.scan": ("scan",),
    "io.open": ("iterate_events", "open_events", "read_events"),
    "io.particles_root": ("RecoWriter", "read_reco"),
    "metrics.evaluation": ("evaluate",),
    "metrics.jets": ("find_jets",),
    "metrics.match": ("HitMatching", "Matching", "match"),
    "metrics.report": ("EvaluationSettings",),
    "physics.detector": ("Detector", "load_detector"),
    "plots.evaluation": ("figures",),
}
_EXPORTS = {name: f"pflow.{module}" for module, names in _MODULES.items() for name in names}

__all__ = ["__version__", *sorted(_EXPORTS)]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    """Import on first use, so that `import pflow` costs nothing."""
    if name == "__version__":
        return import_module("pflow.config").VERSION
    if name in _EXPORTS:
        return getattr(import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'pflow' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
