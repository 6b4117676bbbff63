"""The format of trained models: the header that says how to use the weights, and where header and weights are.

A checkpoint of `pflow fit` is one file of `torch.save` with the header as JSON text under the key ``pflow`` and the
weights under ``state_dict``. Weights without the state of a training are a folder: ``model.safetensors``, and the
header with their SHA-256 as ``model.json``. An exported model is a folder of ONNX graphs and ``tokens.json``, which
holds the header under ``checkpoint``. All hold plain data only, so that reading them runs no code.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from pflow.config import from_plain, shipped_models, weights_dir
from pflow.errors import ConfigError, InputError, first_line
from pflow.physics.detector import Detector
from pflow.tokens.particles import Calibration
from pflow.tokens.tokeniser import Tokeniser

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
    calibration: Calibration | None = None
    provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """How the weights were trained: files, epochs, seed and the like."""

    def to_dict(self) -> dict[str, Any]:
        """As plain data (JSON); ConfigError: a value that plain data cannot hold."""
        try:
            return dict(json.loads(json.dumps({"format": FORMAT, **dataclasses.asdict(self)}, allow_nan=False)))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"a checkpoint's header holds plain data only: {error}") from error

    @classmethod
    def from_dict(cls, content: Any, *, file: str, prefix: str = "") -> Header:
        """Build from parsed JSON; an InputError of the `file` for another layout or a field that cannot be used.

        `prefix` goes before the names of fields in errors.
        """
        content = content if isinstance(content, Mapping) else {}
        if content.get("format") != FORMAT:
            writer = f", written by pflow {content['version']}" if "version" in content else ""
            text = f"expected a header of format {FORMAT}, found {content.get('format', 'none')}{writer}"
            raise InputError(text, file=file, field=f"{prefix}format")

        def part(name: str, build: Callable[[Any], Any]) -> Any:
            try:
                if name != "calibration" and not isinstance(content.get(name), Mapping):
                    raise ValueError("missing from the header, or not of the expected type")
                return build(content.get(name))
            except Exception as error:  # building from arbitrary values can raise anything
                known = isinstance(error, ValueError)
                reason = str(error) if known else f"values that cannot be used: {first_line(error)}"
                raise InputError(reason + made_by(content), file=file, field=f"{prefix}{name}") from error

        return cls(
            version=str(content.get("version", "")),
            tokeniser=part("tokeniser", lambda plain: from_plain(Tokeniser, plain, where="tokeniser")),
            model=part("model", lambda plain: _without_removed_options(plain, file)),
            calibration=part(
                "calibration", lambda plain: None if plain is None else from_plain(Calibration, plain, "calibration")
            ),
            provenance=content.get("provenance") or {},
        )


def made_by(header: Mapping[str, Any]) -> str:
    """End of an error: which version of pflow made a model, and which still reads options and names that are gone."""
    return f" (made by pflow {header.get('version')}; the last version that reads models of 0.1 and 0.2 is pflow 0.3)"


REMOVED = {
    "require_all_tracks": False,
    "min_direction_change": 0.0,
    "photon_depth": 0.0,
    "electron_log_odds": 0.0,
    "energy_cut": "expected",
    "expected_energy": False,
    "min_trackless_energy": 0.0,
    "min_photon_existence": 0.0,
}
"""Decoding options of pflow 0.3 that no longer exist, and the values that had no effect."""


def _without_removed_options(model: Mapping[str, Any], file: str) -> dict[str, Any]:
    """A model description without the `REMOVED` options; warns of options that had an effect."""
    description = copy.deepcopy(dict(model))
    decoding = description.get("init_args", {}).get("decoding") or {}
    given = {name: decoding.pop(name) for name in REMOVED if name in decoding}
    if lost := [f"{name} {value}" for name, value in given.items() if value != REMOVED[name]]:
        warnings.warn(
            f"{file}: made by pflow 0.3, whose decoding options {', '.join(lost)} are gone: its particles differ from "
            "0.3's; `pflow calibrate` chooses the two thresholds that are left",
            FutureWarning,
            stacklevel=2,
        )
    return description


def read_header(name: str) -> Header:
    """The header of a model that comes with pflow, without its weights."""
    path = weights_dir() / name / HEADER_FILE
    return Header.from_dict(json.loads(path.read_text(encoding="utf-8")), file=str(path))


def fitting_models(detector: Detector) -> list[str]:
    """The models that come with pflow for a detector; that which reads most kinds of input is the first."""
    tokenisers = {name: read_header(name).tokeniser for name in shipped_models()}

    def fits(name: str) -> bool:
        try:
            return not tokenisers[name].other_geometry(detector)
        except ConfigError:  # of a model for any detector: this one is not described
            return False

    return sorted(filter(fits, tokenisers), key=lambda name: not tokenisers[name].config.track_features)
