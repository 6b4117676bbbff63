"""Trained models as stored: weights, and a header that says how to use them; read without running code.

A checkpoint of a training is one file with the header as JSON text under the key ``pflow``; weights without the state
of their training are a folder (`pflow.checkpoint.weights`), and some of these come with pflow and are known by name.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from pflow.calibration.uncertainty import UncertaintyCalibration
from pflow.checkpoint.weights import HEADER, read_weights
from pflow.errors import ConfigError, InputError, nearest
from pflow.plain import from_plain, to_plain
from pflow.resources import shipped_models, weights_dir
from pflow.tokens.tokeniser import Tokeniser

__all__ = ["FORMAT", "KEY", "Checkpoint", "differences", "pack_header", "read_checkpoint"]

KEY = "pflow"
"""Key of the header in the checkpoint's mapping."""

FORMAT = 1
"""Version of the header's layout. A reader refuses newer ones."""


def pack_header(
    *,
    tokeniser: Tokeniser,
    network: Mapping[str, Any],
    loss: Mapping[str, Any],
    max_particles: int,
    provenance: Mapping[str, Any],
    version: str,
) -> str:
    """The header as JSON text: all that is needed to use the weights, and where they come from.

    Parameters
    ----------
    tokeniser
        The one that the network was trained with.
    network, loss
        Arguments of the network and of the loss, plain data.
    max_particles
        Longest sentence to generate.
    provenance
        How it was trained: files, epochs, seed and the like, plain data.
    version
        Version of pflow.

    Raises
    ------
    ConfigError
        Something that is not plain data.
    """
    header = {
        "format": FORMAT,
        "version": version,
        "tokeniser": to_plain(tokeniser),
        "network": dict(network),
        "loss": dict(loss),
        "max_particles": max_particles,
        "provenance": dict(provenance),
    }
    try:
        return json.dumps(header, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"a checkpoint's header holds plain data only: {error}") from error


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Checkpoint:
    """A trained model as read.

    Parameters
    ----------
    path
        The file or folder; of a model that comes with pflow, its name.
    digest
        SHA-256, hexadecimal: of the file, or of a folder's weights.
    header
        The parsed header.
    tokeniser
        Built from it.
    calibration
        Calibration of the predicted uncertainties, or None.
    state_dict
        Weights by name, on the CPU.
    """

    path: str
    digest: str
    header: dict[str, Any]
    tokeniser: Tokeniser
    calibration: UncertaintyCalibration | None
    state_dict: dict[str, torch.Tensor]


def read_checkpoint(source: str | Path) -> Checkpoint:
    """Read a trained model. Nothing in it is run: weights and plain data only.

    Parameters
    ----------
    source
        A checkpoint that `pflow fit` wrote, a folder of weights that `pflow export` wrote, or the name of a model that
        comes with pflow. A file goes before a name and a name before a folder, which can be told apart as ``./NAME``.

    Raises
    ------
    InputError
        Nothing of the kind, one that would run code, one that pflow did not write, or one written by a newer pflow;
        names the file and, if there is one, the field.
    """
    if Path(source).is_file():
        return _read_file(source)
    if str(source) in (shipped := shipped_models()):
        return _read_folder(weights_dir() / source, path=str(source))
    if Path(source).is_dir():
        return _read_folder(Path(source), path=str(source))
    known = ", ".join(shipped) or "none does"
    raise InputError(
        f"no such checkpoint or folder of weights, and no model of that name comes with pflow ({known})",
        file=source,
        suggestions=nearest(str(source), shipped),
    )


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any], *, silent: Mapping[str, Any]) -> list[str]:
    """Options of a training that are not those of the checkpoint that it takes, in words.

    Parameters
    ----------
    ours
        As configured.
    theirs
        The checkpoint's.
    silent
        Values that say nothing where they stand in `ours`: defaults, which give way to the checkpoint's.
    """
    return [
        f"{key} {theirs.get(key)}, not {value}"
        for key, value in ours.items()
        if value != theirs.get(key) and not (key in silent and value == silent[key])
    ]


def _read_file(path: str | Path) -> Checkpoint:
    content = _load(path)
    if not isinstance(content, dict) or not isinstance(content.get(KEY), str):
        raise InputError(f"not a checkpoint of pflow: it has no text under the key '{KEY}'", file=path, field=KEY)
    try:
        header = json.loads(content[KEY])
    except json.JSONDecodeError as error:
        raise InputError(f"the header is not JSON: {error}", file=path, field=KEY) from error
    tokeniser, calibration = _check_header(header, file=path, prefix=f"{KEY}.")
    weights = content.get("state_dict")
    if not isinstance(weights, dict):
        raise InputError("the weights are missing", file=path, field="state_dict")
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Checkpoint(
        path=str(path),
        digest=digest,
        header=header,
        tokeniser=tokeniser,
        calibration=calibration,
        state_dict=weights,
    )


def _read_folder(folder: Path, *, path: str) -> Checkpoint:
    weights = read_weights(folder)
    tokeniser, calibration = _check_header(weights.header, file=folder / HEADER, prefix="")
    return Checkpoint(
        path=path,
        digest=weights.digest,
        header=weights.header,
        tokeniser=tokeniser,
        calibration=calibration,
        state_dict=weights.state_dict,
    )


def _check_header(header: Any, *, file: str | Path, prefix: str) -> tuple[Tokeniser, UncertaintyCalibration | None]:
    """Tokeniser and calibration of a header; `prefix` goes before the names of fields in errors."""
    number = header.get("format") if isinstance(header, dict) else None
    if not isinstance(number, int) or number < 1:
        raise InputError("the header states no format", file=file, field=f"{prefix}format")
    if number > FORMAT:
        raise InputError(
            f"written by pflow {header.get('version', '(unknown version)')} in format {number}; this version reads "
            f"formats up to {FORMAT}",
            file=file,
            field=f"{prefix}format",
        )
    for field, kind in (("tokeniser", dict), ("network", dict), ("max_particles", int)):
        if not isinstance(header.get(field), kind):
            raise InputError(
                "missing from the header, or not of the expected type", file=file, field=f"{prefix}{field}"
            )
    try:
        if "widths" in header["tokeniser"]:  # the tokeniser of pflow 0.1 held the calibration
            header["calibration"] = {
                quantity: {name: {"log_sigma": x, "log_factor": y} for name, (x, y) in by_class.items()}
                for quantity, by_class in header["tokeniser"].pop("widths").items()
            }
        calibration = header.get("calibration")
        return (
            from_plain(Tokeniser, header["tokeniser"], where="tokeniser"),
            None if calibration is None else from_plain(UncertaintyCalibration, calibration, where="calibration"),
        )
    except (ConfigError, AttributeError, TypeError, ValueError) as error:
        raise InputError(str(error), file=file, field=f"{prefix}tokeniser") from error


def _load(path: str | Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise InputError(
            "not a checkpoint, or one that holds more than weights and plain data; pflow runs no code from files",
            file=path,
        ) from error
    except Exception as error:  # the unpickler reads any bytes as instructions and fails in any way
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"not a checkpoint, or a truncated one: {reason}", file=path) from error
