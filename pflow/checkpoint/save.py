"""A trained model to a folder of its weights, without the state of the training, that appears only when whole."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from pflow.calibration.uncertainty import UncertaintyCalibration
from pflow.checkpoint.format import read_checkpoint
from pflow.checkpoint.load import load_model
from pflow.checkpoint.weights import HEADER, WEIGHTS
from pflow.errors import ConfigError
from pflow.io.atomic import check_folder, replacing_folder
from pflow.model.api import DecodingConfig
from pflow.plain import to_plain

__all__ = ["write_weights"]


def write_weights(
    checkpoint: str | Path,
    folder: str | Path,
    *,
    half: bool = False,
    calibration: UncertaintyCalibration | None = None,
    decoding: DecodingConfig | None = None,
) -> tuple[Path, ...]:
    """Write a model as ``model.safetensors`` and ``model.json``; `pflow.load_model` takes the folder.

    The same checkpoint gives the same files, byte for byte.

    Parameters
    ----------
    checkpoint
        What `pflow.load_model` takes.
    folder
        To be made; one that exists must be empty.
    half
        Whether to store matrices in half precision: half the size, and each weight changed by up to 0.05%. They are
        used in single precision all the same. Whether results stay is to be measured.
    calibration
        Calibration of the uncertainties in place of the model's own.
    decoding
        Decoding options in place of the model's own.

    Returns
    -------
    tuple of Path
        The two files.

    Raises
    ------
    ConfigError
        The folder cannot be made there, or a weight is too large for half precision.
    InputError
        Not a model that can be loaded.
    """
    check_folder(folder)
    load_model(checkpoint)  # what is passed on must be usable
    trained = read_checkpoint(checkpoint)
    # A copy of each: what shares memory in the network is stored like all others.
    tensors = {name: value.contiguous().clone() for name, value in sorted(trained.state_dict.items())}
    content = save({name: _halved(name, value) for name, value in tensors.items()} if half else tensors)
    header = {
        **trained.header,
        "sha256": hashlib.sha256(content).hexdigest(),
        "checkpoint_sha256": trained.header.get("checkpoint_sha256", trained.digest),
    }
    if decoding is not None:
        thresholds = {"end": "eos_threshold", "keep": "existence_threshold"}
        options = {old: getattr(decoding, new) for old, new in thresholds.items() if hasattr(decoding, new)}
        header["network"] = {**trained.header["network"], **options}
        header["max_particles"] = decoding.max_particles
    if calibration is not None:
        header["calibration"] = to_plain(calibration)
    with replacing_folder(folder) as partial:
        (partial / WEIGHTS).write_bytes(content)
        text = json.dumps(header, indent=2, ensure_ascii=False, allow_nan=False)
        (partial / HEADER).write_text(text + "\n", encoding="utf-8")
    return Path(folder) / WEIGHTS, Path(folder) / HEADER


def _halved(name: str, value: Tensor) -> Tensor:
    """A matrix in half precision, anything else as it is."""
    if value.ndim < 2 or not value.is_floating_point():
        return value
    halved = value.half()
    if bool((halved.isinf() & ~value.isinf()).any()):
        raise ConfigError(f"'{name}' has weights up to {value.abs().max():g}, too large for half precision")
    return halved
