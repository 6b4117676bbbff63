"""Trained models as stored: their format, reading them without Lightning and without running code, and writing them.

A checkpoint of `pflow fit` is one file of `torch.save` with the header as JSON text under the key ``pflow`` and the
weights under ``state_dict``. Weights without the state of a training are a folder: ``model.safetensors``, and the
header with their SHA-256 as ``model.json``. An exported model is a folder of ONNX graphs and ``tokens.json``, which
holds the header under ``checkpoint``. All hold plain data only, so that reading them runs no code.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import os
import pickle
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors.torch import save

import pflow
from pflow.config import RENAMED, from_plain, model_folder, shipped_models, weights_dir
from pflow.errors import ConfigError, InputError, first_line, nearest, reading
from pflow.event.events import Events, Reconstruction
from pflow.io.atomic import check_output, replacing
from pflow.model.api import DecodingConfig, ModelInputs, Reconstructor, build_reconstructor
from pflow.physics.detector import Detector
from pflow.show import html_table
from pflow.tokens.particles import Calibration
from pflow.tokens.tokeniser import Tokeniser
from pflow.tokens.tokens import PARTS

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
        content = {**content, "provenance": content.get("provenance") or {}}
        if content.get("format") != FORMAT:
            writer = f", written by pflow {content['version']}" if "version" in content else ""
            text = f"expected a header of format {FORMAT}, found {content.get('format', 'none')}{writer}"
            raise InputError(text, file=file, field=f"{prefix}format")

        def part(name: str, build: Callable[[Any], Any]) -> Any:
            try:
                # A model that was not calibrated has null there.
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
            provenance=part("provenance", dict),
        )


def header_of(content: Any, *, file: str) -> Header:
    """The header in the mapping of a checkpoint; an InputError of the `file`: none, or one that cannot be used."""
    if not isinstance(content, dict) or not isinstance(content.get(KEY), str):
        raise InputError(f"not a checkpoint of pflow: it has no text under the key '{KEY}'", file=file, field=KEY)
    with reading("the header is not JSON", file=file, field=KEY):
        plain = json.loads(content[KEY])
    return Header.from_dict(plain, file=file, prefix=f"{KEY}.")


def made_by(header: Mapping[str, Any]) -> str:
    """End of an error: which version of pflow made a model, and which still reads options and names that are gone."""
    return f" (made by pflow {header.get('version')}; pflow 0.3 is the last that reads all models of 0.1 to 0.3)"


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
    # The options are removed in place below, and the header is the caller's.
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


PREFIX = "reconstructor."
"""Beginning of the names of the model's weights in a checkpoint."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Checkpoint:
    """A trained model as read."""

    path: str
    """The file or folder; of a model that comes with pflow, its name."""
    digest: str
    """SHA-256, hexadecimal: of the file, or of a folder's tensors."""
    header: Header
    state_dict: dict[str, torch.Tensor]
    """Weights by name, on the CPU."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class TrainedModel:
    """All that turns events into particles.

    The `reconstructor` is in evaluation mode, on the CPU. `digest` and `path` are as of `Checkpoint`, and `config` is
    the header as plain data.
    """

    reconstructor: Reconstructor
    tokeniser: Tokeniser
    digest: str
    path: str
    config: dict[str, Any]
    calibration: Calibration | None = None

    def __repr__(self) -> str:
        return f"<TrainedModel {', '.join(f'{name}: {text}' for name, text in self._facts())}>"

    def _repr_html_(self) -> str:
        return html_table(("TrainedModel", ""), self._facts())

    def _facts(self) -> list[tuple[str, str]]:
        """What the model is, by name, for people."""
        tokens = self.tokeniser.config
        n_weights = sum(weights.numel() for weights in self.reconstructor.parameters())
        return [
            ("path", self.path),
            ("detector", self.tokeniser.reads_detector),
            ("network", type(self.reconstructor).__name__),
            ("weights", f"{n_weights:,}"),
            ("reads", " and ".join(part.replace("_", " ") for part in PARTS if tokens.features(part))),
            ("truth rule", tokens.rule),
        ]

    def merging(self, ecal_mm: float) -> TrainedModel:
        """The same model, which reads cells of the ECAL merged to another size, mm.

        ConfigError: a size outside of its training.
        """
        return dataclasses.replace(self, tokeniser=self.tokeniser.merging(ecal_mm))

    def reconstruct(self, events: Events | str | Path | Sequence[str | Path], **options: Any) -> Reconstruction:
        """The particles of events or of files of events; `pflow.reconstruct` explains the `options`."""
        return pflow.reconstruct(events, self, **options)


def load_model(source: str | Path) -> TrainedModel:
    """Load a trained model.

    The `source` is the path of a checkpoint of `pflow fit` or of a folder of ``pflow export --format weights``, or the
    name of a model that comes with pflow (`pflow.shipped_models` lists them).

    Raises
    ------
    InputError
        No such model (with the nearest names), one that would run code, one of a newer pflow, one that is damaged, or
        one whose weights do not fit its configuration; names the file.

    Examples
    --------
    >>> load_model("ild-g4-photon")
    <TrainedModel path: ild-g4-photon, detector: ild_g4, ..., reads: hits, truth rule: stable>
    """
    checkpoint = read_checkpoint(source)
    check_weights(checkpoint)
    with torch.random.fork_rng([]):  # its random weights, which are replaced, leave the user's generator as it was
        reconstructor = _build(checkpoint)
    load_weights(reconstructor, checkpoint)
    tokeniser, parts = checkpoint.header.tokeniser, checkpoint.header.provenance.get("calibrated_on", ())
    with reading("what it was calibrated on is unknown", file=checkpoint.path, field="provenance.calibrated_on"):
        names = dict(next((part["detectors"] for part in reversed(parts) if part.get("detectors")), {}))
    if tokeniser.sample is not None:
        tokeniser = dataclasses.replace(tokeniser, sample=dataclasses.replace(tokeniser.sample, calibrated_for=names))
    return TrainedModel(
        reconstructor=reconstructor.eval(),
        tokeniser=tokeniser,
        calibration=checkpoint.header.calibration,
        digest=checkpoint.digest,
        path=checkpoint.path,
        config=checkpoint.header.to_dict(),
    )


def check_weights(checkpoint: Checkpoint) -> None:
    """An InputError if the weights have other shapes than the configuration gives.

    A configuration is a few bytes and can ask for any amount of memory: nothing is allocated before its shapes
    equal the stored weights'.
    """
    try:
        with torch.device("meta"):
            reconstructor = _build(checkpoint)
    except InputError as error:
        if isinstance(error.__cause__, NotImplementedError):  # an architecture that computes when it is built
            return
        raise
    # torch copies nothing into tensors of the device meta: the weights must take their place.
    load_weights(reconstructor, checkpoint, assign=True)


def _build(checkpoint: Checkpoint) -> Reconstructor:
    """A reconstructor of the checkpoint's configuration with random weights."""
    header, path, wrong = checkpoint.header, checkpoint.path, "its configuration makes no network"
    try:
        with reading(wrong, file=path, field="model"):
            reconstructor = build_reconstructor(header.model, ModelInputs(**header.tokeniser.model_inputs))
    except ConfigError as error:
        raise InputError(f"{wrong}: {error}{made_by(header.to_dict())}", file=path, field="model") from error
    if reconstructor.needs_readout and not header.tokeniser.config.readout:
        text = "the network reads single hits (readout), which the configuration of its tokens leaves out"
        raise InputError(text, file=path, field="tokeniser.config.readout")
    return reconstructor


def load_weights(reconstructor: Reconstructor, checkpoint: Checkpoint, *, assign: bool = False) -> None:
    """Load weights into a reconstructor; `assign` avoids a copy. An InputError names what does not fit."""
    weights = {name.removeprefix(PREFIX): w for name, w in checkpoint.state_dict.items() if name.startswith(PREFIX)}
    try:
        reconstructor.load_state_dict(weights, assign=assign)
    except (RuntimeError, AttributeError) as error:
        # The first line of torch's message only names the class; the next ones name the weights.
        reason = "; ".join(line.strip() for line in str(error).splitlines()[1:4]) or str(error)
        text = f"its weights do not fit its configuration: {reason}{made_by(checkpoint.header.to_dict())}"
        raise InputError(text, file=checkpoint.path, field="state_dict") from error


def read_checkpoint(source: str | Path) -> Checkpoint:
    """Read a trained model, weights and plain data only: nothing in it is run.

    Lookup order: file, built-in name, folder; ``./NAME`` is always a file or folder. Raises the InputErrors of
    `load_model`; a weight that is not a finite number is damaged.
    """
    if (folder := model_folder(source)) is not None:
        if RENAMED.get(str(source)) == folder.name:
            text = f"the model '{source}' of pflow 0.3 is gone: '{folder.name}' takes its place, with other numbers"
            warnings.warn(text, FutureWarning, stacklevel=3)
            source = folder.name
        return _read_folder(folder, path=str(source))
    if Path(source).is_file():
        return _read_file(str(source))
    shipped = shipped_models()
    known = ", ".join(shipped) or "none does"
    text = f"no such checkpoint or folder, and no model of that name comes with pflow ({known})"
    raise InputError(text, file=source, suggestions=nearest(str(source), shipped))


def _read_file(path: str) -> Checkpoint:
    _check_archive(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        text = "not a checkpoint, or one that holds more than weights and plain data; pflow runs no code from files"
        raise InputError(text, file=path) from error
    except Exception as error:  # the unpickler reads any bytes as instructions and fails in any way
        raise InputError(f"not a checkpoint, or a truncated one: {first_line(error)}", file=path) from error
    header = header_of(content, file=path)
    weights = content.get("state_dict")
    if not isinstance(weights, dict):
        raise InputError("the weights are missing", file=path, field="state_dict")
    _check_tensors(weights, path)
    # `file_digest` reads in blocks: the file need not be in memory beside the weights.
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Checkpoint(path=path, digest=digest, header=header, state_dict=weights)


def _check_archive(path: str) -> None:
    """Refuse a file that is not the whole archive that `torch.save` wrote, before anything in it is unpacked.

    `torch.load` does not compare checksums: a damaged file would load as other weights. It writes archives without
    compression, so that one with compressed parts, which may unpack to any size, is not its own.
    """
    with reading("not a checkpoint, or a truncated one", file=path), zipfile.ZipFile(path) as archive:
        parts = archive.infolist()
        stored = all(part.compress_type == zipfile.ZIP_STORED for part in parts)
        # Parts that share bytes of the file unpack to more than it holds, without any compression.
        if not stored or sum(part.file_size for part in parts) > os.path.getsize(path):
            raise InputError("not a checkpoint of pflow: its parts are compressed", file=path)
        if (damaged := archive.testzip()) is not None:
            raise InputError(f"damaged: the checksum of '{damaged}' does not fit its content", file=path)


def _check_tensors(weights: Mapping[Any, Any], path: str | Path) -> None:
    """Refuse weights that are not dense tensors of finite numbers, all stored in the file."""
    for name, value in weights.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise InputError(f"expected tensors by name, found {type(value).__name__}", file=path, field=str(name))
        if value.layout != torch.strided or value.is_quantized or value.is_complex():
            raise InputError("expected a dense tensor of real numbers", file=path, field=name)
        # A stride of 0 repeats one stored number to any shape, and the next check would fill the memory with it.
        if value.numel() * value.element_size() > value.untyped_storage().nbytes():
            raise InputError(f"a tensor of shape {list(value.shape)} has fewer numbers", file=path, field=name)
        if n_bad := int((~torch.isfinite(value)).sum()):
            cause = "the training diverged, or the file is damaged"
            text = f"{n_bad} of {value.numel()} weights are not finite numbers: {cause}"
            raise InputError(text, file=path, field=name)


def _read_folder(folder: Path, *, path: str) -> Checkpoint:
    if (folder / TOKENS).is_file():
        with reading("expected what `pflow export` wrote", file=folder / TOKENS):
            made_of = str(json.loads((folder / TOKENS).read_text(encoding="utf-8"))["run"]["checkpoint_sha256"])
        wrong = (
            f"holds graphs for C++ and no weights: name the checkpoint that it was exported from (SHA-256 {made_of})"
        )
        raise InputError(wrong, file=folder)
    for name in (HEADER_FILE, WEIGHTS_FILE):
        if not (folder / name).is_file():
            others = map(str, folder.glob("*.ckpt"))
            raise InputError(f"not a folder of weights: it has no {name}", file=folder, suggestions=others)
    text, tensors = folder / HEADER_FILE, folder / WEIGHTS_FILE
    with reading("not JSON", file=text):
        content = json.loads(text.read_text(encoding="utf-8"))
    stated = content.get("sha256") if isinstance(content, dict) else None
    if not isinstance(stated, str):
        raise InputError("missing, or not a text: the digest of the weights", file=text, field="sha256")
    with reading("cannot be read", file=tensors):
        # Read once: the digest is of the bytes that are loaded, also if the file is replaced meanwhile.
        data = tensors.read_bytes()
    if (computed := hashlib.sha256(data).hexdigest()) != stated:
        wrong = f"damaged, or not what {HEADER_FILE} was written for: its SHA-256 is {computed}, expected {stated}"
        raise InputError(wrong, file=tensors)
    header = Header.from_dict(content, file=str(text))
    with reading("not a safetensors file", file=tensors):
        weights = safetensors.torch.load(data)
    _check_tensors(weights, tensors)
    return Checkpoint(path=path, digest=stated, header=header, state_dict=weights)


FILES = (WEIGHTS_FILE, HEADER_FILE)
"""What a folder of weights holds."""


def write_weights(
    checkpoint: str | Path,
    folder: str | Path,
    *,
    calibration: Calibration | None = None,
    decoding: DecodingConfig | None = None,
    calibrated_on: Sequence[Mapping[str, Any]] = (),
    force: bool = False,
) -> tuple[Path, ...]:
    """Write a model as ``model.safetensors`` and ``model.json``, the paths; `pflow.load_model` takes the folder.

    The folder appears only when it is complete; one that exists must be empty, or with `force` hold nothing but these
    files. The same checkpoint gives the same bytes. `calibration` and `decoding` replace the model's own, and
    `calibrated_on` (`files`, `uuids` of each calibration) is noted. ConfigError: the folder cannot be made. InputError:
    not a model that can be loaded.
    """
    check_output(folder, inputs=[checkpoint], force=force, holds=FILES)
    load_model(checkpoint)  # the model must be usable
    trained = read_checkpoint(checkpoint)
    # A copy of each: tensors that share memory are stored like all others.
    content = save({name: value.contiguous().clone() for name, value in trained.state_dict.items()})
    header, made = trained.header, {"checkpoint_sha256": trained.digest, **trained.header.provenance}
    if calibrated_on:
        made["calibrated_on"] = [*calibrated_on]
    if decoding is not None:
        init_args = {**header.model["init_args"], "decoding": dataclasses.asdict(decoding)}
        header = dataclasses.replace(header, model={**header.model, "init_args": init_args})
    header = dataclasses.replace(header, calibration=calibration or header.calibration, provenance=made)
    # The digest ties the two files together: weights beside the header of another model are refused.
    text = header.to_dict() | {"sha256": hashlib.sha256(content).hexdigest()}
    with replacing(folder, force=force, holds=FILES) as partial:
        (partial / WEIGHTS_FILE).write_bytes(content)
        (partial / HEADER_FILE).write_text(json.dumps(text, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return tuple(Path(folder) / name for name in FILES)
