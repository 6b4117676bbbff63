"""Trained models, ready to use: network and tokeniser together, without Lightning and without running code."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from pflow.calibration.uncertainty import UncertaintyCalibration
from pflow.checkpoint.format import read_checkpoint
from pflow.checkpoint.migrate import migrate_model_options, migrate_state_dict
from pflow.errors import InputError
from pflow.model.api import ModelInputs, Reconstructor, build_reconstructor
from pflow.tokens.tokeniser import Tokeniser

__all__ = ["PREFIX", "Model", "load_model", "model_spec"]

PREFIX = "reconstructor."
"""Prefix of the names of the model's weights in a checkpoint."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Model:
    """All that turns events into particles.

    Parameters
    ----------
    reconstructor
        In evaluation mode, on the CPU.
    tokeniser
        The one it was trained with.
    digest
        SHA-256, hexadecimal: of the checkpoint, or of a folder's weights.
    path
        The checkpoint or folder of weights; of a model that comes with pflow, its name.
    calibration
        Calibration of the predicted uncertainties (`pflow calibrate`), or None.
    config
        Its header: network and loss arguments, provenance, version of pflow.
    """

    reconstructor: Reconstructor
    tokeniser: Tokeniser
    digest: str
    path: str
    config: dict[str, Any]
    calibration: UncertaintyCalibration | None = None

    @property
    def max_particles(self) -> int:
        """Largest number of particles of an event."""
        return self.reconstructor.decoding.max_particles


def load_model(source: str | Path) -> Model:
    """Load a trained model.

    Parameters
    ----------
    source
        Path of a checkpoint that `pflow fit` wrote or of a folder of weights that `pflow export` wrote, or the name of
        a model that comes with pflow (`pflow.shipped_models` lists them).

    Raises
    ------
    InputError
        Nothing of the kind, with the nearest names; one that would run code; one of a newer pflow; or one whose
        weights do not fit its configuration. Names the file.
    """
    checkpoint = read_checkpoint(source)
    try:
        network = build_reconstructor(model_spec(checkpoint.header), ModelInputs(**checkpoint.tokeniser.sizes))
    except (TypeError, ValueError) as error:
        raise InputError(f"its configuration makes no network: {error}", file=source, field="network") from error
    migrated = migrate_state_dict(checkpoint.state_dict)
    weights = {name.removeprefix(PREFIX): value for name, value in migrated.items() if name.startswith(PREFIX)}
    try:
        network.load_state_dict(weights)
    except (RuntimeError, AttributeError) as error:
        reason = "; ".join(line.strip() for line in str(error).splitlines()[1:4]) or str(error)
        raise InputError(
            f"its weights do not fit its configuration: {reason}", file=source, field="state_dict"
        ) from error
    return Model(
        reconstructor=network.eval(),
        tokeniser=checkpoint.tokeniser,
        digest=checkpoint.digest,
        path=checkpoint.path,
        config=checkpoint.header,
        calibration=checkpoint.calibration,
    )


def model_spec(header: dict[str, Any]) -> dict[str, Any]:
    """``class_path`` and ``init_args`` of a header.

    Raises
    ------
    ValueError
        Options of format 1 that are gone.
    """
    if "model" in header:
        return dict(header["model"])
    return migrate_model_options(header["network"], header.get("loss"), int(header["max_particles"]))
