"""The model that comes with pflow for a file's detector."""

from __future__ import annotations

from pflow.checkpoint.load import read_checkpoint
from pflow.config import shipped_models
from pflow.errors import InputError
from pflow.io.open import EventFile

__all__ = ["shipped_model"]


def shipped_model(file: EventFile) -> str:
    """Name of the model that comes with pflow for the detector of a file.

    Of several, the one that reads the most kinds of input: that of hits and tracks goes before that of hits alone.

    Parameters
    ----------
    file
        An open file of any schema.

    Raises
    ------
    InputError
        There is none for this detector; names those that there are.
    """
    headers = {name: read_checkpoint(name).header for name in shipped_models()}
    fitting = {
        name: sum(map(bool, (header.tokeniser.config.track_features, header.tokeniser.config.tracker_hit_features)))
        for name, header in headers.items()
        if not header.tokeniser.other_geometry(file.detector)
    }
    if not fitting:
        known = ", ".join(f"{name} ({header.tokeniser.detector.name})" for name, header in headers.items())
        raise InputError(
            f"no model comes with pflow for detector '{file.detector.name}', those are {known}: name one with "
            "--checkpoint, or train one (pflow fit --start-from)",
            file=file.path,
            field="detector",
        )
    return max(fitting, key=lambda name: fitting[name])
