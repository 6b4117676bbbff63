"""pflow: machine-learned particle-flow reconstruction, from calorimeter hits and tracks to particles."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pflow.detector import Detector as Detector
    from pflow.detector import load_detector as load_detector
    from pflow.events import Events as Events
    from pflow.io.read import iterate_events as iterate_events
    from pflow.io.read import open_events as open_events
    from pflow.io.read import read_events as read_events
    from pflow.reco.load import load_model as load_model
    from pflow.reco.reconstruct import reconstruct as reconstruct
    from pflow.reconstruction import Reconstruction as Reconstruction
    from pflow.resources import shipped_models as shipped_models
    from pflow.truth import select_targets as select_targets

_EXPORTS = {
    "Detector": "pflow.detector",
    "Events": "pflow.events",
    "Reconstruction": "pflow.reconstruction",
    "iterate_events": "pflow.io.read",
    "load_detector": "pflow.detector",
    "load_model": "pflow.reco.load",
    "open_events": "pflow.io.read",
    "read_events": "pflow.io.read",
    "reconstruct": "pflow.reco.reconstruct",
    "select_targets": "pflow.truth",
    "shipped_models": "pflow.resources",
}

__all__ = [
    "Detector",
    "Events",
    "Reconstruction",
    "__version__",
    "iterate_events",
    "load_detector",
    "load_model",
    "open_events",
    "read_events",
    "reconstruct",
    "select_targets",
    "shipped_models",
]


def __getattr__(name: str) -> Any:
    """Import on first use, so that `import pflow` costs nothing."""
    if name == "__version__":
        from importlib.metadata import version

        return version("pflow")
    if name in _EXPORTS:
        return getattr(import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'pflow' has no attribute '{name}'")


def __dir__() -> list[str]:
    return [*sorted(_EXPORTS), "__version__"]
