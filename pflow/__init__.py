"""pflow: machine-learned particle-flow reconstruction, from calorimeter hits and tracks to particles."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pflow.checkpoint.load import load_model as load_model
    from pflow.config import shipped_models as shipped_models
    from pflow.event.events import Events as Events
    from pflow.event.particles import Reconstruction as Reconstruction
    from pflow.event.schema import make_particles as make_particles
    from pflow.event.truth import select_targets as select_targets
    from pflow.inference.events import reconstruct as reconstruct
    from pflow.inference.explain import explain as explain
    from pflow.io.open import iterate_events as iterate_events
    from pflow.io.open import open_events as open_events
    from pflow.io.open import read_events as read_events
    from pflow.io.particles_root import RecoWriter as RecoWriter
    from pflow.io.particles_root import read_reco as read_reco
    from pflow.metrics.evaluate import evaluate as evaluate
    from pflow.metrics.evaluation import EvaluationSettings as EvaluationSettings
    from pflow.metrics.jets import find_jets as find_jets
    from pflow.metrics.match import HitMatching as HitMatching
    from pflow.metrics.match import Matching as Matching
    from pflow.metrics.match import match as match
    from pflow.physics.detector import Detector as Detector
    from pflow.physics.detector import load_detector as load_detector
    from pflow.plots.evaluation import figures as figures

_EXPORTS = {
    "Detector": "pflow.physics.detector",
    "EvaluationSettings": "pflow.metrics.evaluation",
    "Events": "pflow.event.events",
    "HitMatching": "pflow.metrics.match",
    "Matching": "pflow.metrics.match",
    "RecoWriter": "pflow.io.particles_root",
    "Reconstruction": "pflow.event.particles",
    "evaluate": "pflow.metrics.evaluate",
    "explain": "pflow.inference.explain",
    "figures": "pflow.plots.evaluation",
    "find_jets": "pflow.metrics.jets",
    "iterate_events": "pflow.io.open",
    "load_detector": "pflow.physics.detector",
    "load_model": "pflow.checkpoint.load",
    "make_particles": "pflow.event.schema",
    "match": "pflow.metrics.match",
    "open_events": "pflow.io.open",
    "read_events": "pflow.io.open",
    "read_reco": "pflow.io.particles_root",
    "reconstruct": "pflow.inference.events",
    "select_targets": "pflow.event.truth",
    "shipped_models": "pflow.config",
}

__all__ = ["__version__", *_EXPORTS]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    """Import on first use, so that `import pflow` costs nothing."""
    if name == "__version__":
        return import_module("pflow.config").VERSION
    if name in _EXPORTS:
        return getattr(import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'pflow' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
