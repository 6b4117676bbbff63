"""The format of trained models: the header that says how to use the weights, and where header and weights are.

A checkpoint of `pflow fit` is one file of `torch.save` with the header as JSON text under the key ``pflow`` and the
weights under ``state_dict``. Weights without the state of a training are a folder: ``model.safetensors``, and the
header with their SHA-256 as ``model.json``. An exported model is a folder of ONNX graphs and ``tokens.json``, which
holds the header under ``checkpoint``. All hold plain data only, so that reading them runs no code.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pflow.checkpoint.migrate import without_removed
from pflow.config import from_plain, to_plain
from pflow.errors import ConfigError, InputError, first_line, reading
from pflow.tokens.tokeniser import Tokeniser
from pflow.tokens.uncertainty import UncertaintyCalibration

__all__ = [
    "EXPORT_FILES",
    "EXPORT_FORMAT",
    "FORMAT",
    "GRAPHS",
    "HEADER_FILE",
    "KEY",
    "TOKENS",
    "WEIGHTS_FILE",
    "Header",
    "read_checked",
]

FORMAT = 2
"""Version of the header's layout, the only one that was ever published."""

KEY = "pflow"
"""Key of the header in the mapping of a checkpoint."""

HEADER_FILE, WEIGHTS_FILE = "model.json", "model.safetensors"
"""Of a folder of weights: the header, with ``sha256`` of the file of the tensors, and the tensors."""

GRAPHS = {name: f"{name}.onnx" for name in ("encoder", "decoder", "refinement")}
"""Files of an exported model's graphs, in the order in which they are run; not every network has a refinement."""

TOKENS = "tokens.json"
"""The description beside them."""

EXPORT_FILES = (*GRAPHS.values(), TOKENS)
"""What an exported folder can hold."""

EXPORT_FORMAT = 4
"""Version of the description's layout."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Header:
    """All that is needed to use weights, and where they come from."""

    version: str
    """Version of pflow that wrote it."""
    tokeniser: Tokeniser
    model: Mapping[str, Any]
    """``class_path`` and ``init_args`` (`pflow.model.api.describe`)."""
    calibration: UncertaintyCalibration | None = None
    provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """How the weights were trained: files, epochs, seed and the like."""

    def to_dict(self) -> dict[str, Any]:
        """As plain data (JSON); a ConfigError where something is none."""
        content = {
            "format": FORMAT,
            "version": self.version,
            "tokeniser": to_plain(self.tokeniser),
            "model": self.model,
            "calibration": None if self.calibration is None else to_plain(self.calibration),
            "provenance": self.provenance,
        }
        try:
            return dict(json.loads(json.dumps(content, allow_nan=False)))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"a checkpoint's header holds plain data only: {error}") from error

    @classmethod
    def from_dict(cls, content: Any, *, file: str, prefix: str = "") -> Header:
        """Build from parsed JSON; an InputError of the `file` for another layout or a field that cannot be used.

        `prefix` goes before the names of fields in errors.
        """
        number = content.get("format") if isinstance(content, dict) else None
        if not isinstance(number, int) or number < 1:
            raise InputError("the header states no format", file=file, field=f"{prefix}format")
        if number != FORMAT:
            raise InputError(
                f"written by pflow {content.get('version', '(unknown version)')} in format {number}; this version "
                f"reads format {FORMAT}",
                file=file,
                field=f"{prefix}format",
            )
        field = "model"
        try:
            if not isinstance(content.get("model"), dict) or "class_path" not in content["model"]:
                raise InputError("missing from the header, or not a class_path with init_args")
            model = without_removed(content["model"])
            field = "tokeniser"
            if not isinstance(content.get("tokeniser"), dict):
                raise InputError("missing from the header, or not of the expected type")
            stored = {
                "config" if name == "recipe" else name: part for name, part in content["tokeniser"].items()
            }  # 0.2
            tokeniser = from_plain(Tokeniser, stored, where="tokeniser")
            field = "calibration"
            found = content.get("calibration")
            calibration = None if found is None else from_plain(UncertaintyCalibration, found, where="calibration")
        except ValueError as error:
            raise InputError(str(error), file=file, field=f"{prefix}{field}") from error
        except Exception as error:  # what is built from any values fails in any way
            raise InputError(
                f"values that cannot be used: {first_line(error)}", file=file, field=f"{prefix}{field}"
            ) from error
        return cls(
            version=str(content.get("version", "")),
            tokeniser=tokeniser,
            model=model,
            calibration=calibration,
            provenance=content.get("provenance") or {},
        )


def read_checked(path: Path, digest: str, *, stated_in: str) -> bytes:
    """Content of a file; an InputError if its SHA-256 is not the hexadecimal digest that stands in `stated_in`."""
    with reading("cannot be read", file=path):
        content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != digest:
        raise InputError(
            f"damaged, or not what {stated_in} was written for: its SHA-256 is {found}, expected {digest}", file=path
        )
    return content
