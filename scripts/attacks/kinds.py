"""Kinds of cases: they damage an input, read it, and check the result."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import io
import json
import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import torch
import yaml

import pflow
from attacks.mutate import Generator, altered, damaged, picked
from pflow.checkpoint import HEADER_FILE, KEY, PREFIX, WEIGHTS_FILE, Header, load_model
from pflow.cli.main import EXIT_CODES, main
from pflow.config import config_dir, weights_dir
from pflow.errors import ConfigError
from pflow.event.events import Events, Flag, Reconstruction
from pflow.io.flat import load_layout, write_events
from pflow.io.inspect import inspect_file
from pflow.io.open import open_events
from pflow.io.particles_root import RecoWriter, read_provenance, read_reco
from pflow.model.api import ModelInputs, describe
from pflow.model.pointing import PointingNetworkConfig, PointingReconstructor
from pflow.model.translation import TranslationNetworkConfig, TranslationReconstructor
from pflow.physics.detector import load_detector
from pflow.tokens.tokeniser import Tokeniser
from pflow.tokens.tokens import TokenConfig

DATA = Path(__file__).resolve().parent.parent.parent / "tests" / "data"
MODEL = "ild-g4-photon"


def make_originals(folder: Path) -> None:
    """Write the files to damage: small ones of every format that pflow reads."""
    events = pflow.read_events(DATA / "multi_test_small.root", entry_stop=3)
    write_events(folder / "flat.root", events)
    reconstruction = pflow.reconstruct(events, MODEL, device="cpu")
    for format in ("ttree", "rntuple"):
        with RecoWriter(folder / f"reco_{format}.root", provenance={"made": "here"}, format=format) as writer:
            writer.extend(reconstruction)
    shipped = weights_dir() / MODEL
    for name in (HEADER_FILE, WEIGHTS_FILE):
        (folder / name).write_bytes((shipped / name).read_bytes())
    small: dict[str, Any] = {"width": 8, "heads": 1, "encoder_layers": 1, "decoder_layers": 1, "feedforward": 8}
    tokeniser = Tokeniser.fit([events], TokenConfig())
    inputs = ModelInputs(**tokeniser.model_inputs)
    for name, model in {
        "pointing": PointingReconstructor(inputs, network=PointingNetworkConfig(**small)),
        "translation": TranslationReconstructor(inputs, network=TranslationNetworkConfig(**small)),
    }.items():
        header = Header(version=pflow.__version__, tokeniser=tokeniser, model=describe(model))
        content = {KEY: json.dumps(header.to_dict()), "state_dict": model.state_dict(prefix=PREFIX)}
        torch.save(content, folder / f"{name}.ckpt")
    shutil.copy(DATA / "cld_zqq_small.edm4hep.root", folder / "edm4hep_ttree.root")
    shutil.copy(DATA / "cld_zqq_small_rntuple.edm4hep.root", folder / "edm4hep_rntuple.root")
    shutil.copy(DATA / "gamma1_small.h5", folder / "legacy.h5")


def _damaged(name: str, originals: Path, folder: Path, generator: Generator) -> Path:
    """A damaged copy of an original."""
    (folder / name).write_bytes(damaged((originals / name).read_bytes(), generator))
    return folder / name


def _events(name: str, originals: Path, folder: Path, generator: Generator) -> None:
    path = _damaged(name, originals, folder, generator)
    if generator.random() < 0.2:
        inspect_file(path)
        return
    on_error = "skip" if generator.random() < 0.5 else "raise"
    with open_events(path) as file:
        events = file.read(0, 3, on_error=on_error)
    assert not events.violations(), "events with violations were returned"


def _reconstruction(name: str, originals: Path, folder: Path, generator: Generator) -> None:
    path = _damaged(name, originals, folder, generator)
    if generator.random() < 0.2:
        read_provenance(path)
        return
    assert read_reco(path).finite().all(), "particles with numbers that are not finite were returned"


CHECKPOINTS = ("pointing.ckpt", "translation.ckpt")


def _checkpoint(originals: Path, folder: Path, generator: Generator) -> None:
    path = _damaged(picked(CHECKPOINTS, generator), originals, folder, generator)
    weights = load_model(path).reconstructor.state_dict()
    expected = load_model(originals / path.name).reconstructor.state_dict()
    assert all(torch.equal(weights[key], value) for key, value in expected.items()), "a damaged file gave other weights"


def _checkpoint_header(originals: Path, folder: Path, generator: Generator) -> None:
    """A whole checkpoint that says something else."""
    name = picked(CHECKPOINTS, generator)
    content = torch.load(originals / name, weights_only=True)
    content[KEY] = json.dumps(altered(json.loads(content[KEY]), generator))
    torch.save(content, folder / name)
    _use(folder / name)


def _weights(originals: Path, folder: Path, generator: Generator) -> None:
    """A folder of damaged weights with a matching digest."""
    content = damaged((originals / WEIGHTS_FILE).read_bytes(), generator)
    header = json.loads((originals / HEADER_FILE).read_text("utf-8"))
    header["sha256"] = hashlib.sha256(content).hexdigest()
    (folder / WEIGHTS_FILE).write_bytes(content)
    (folder / HEADER_FILE).write_text(json.dumps(header))
    _use(folder)


def _weights_header(originals: Path, folder: Path, generator: Generator) -> None:
    text = (originals / HEADER_FILE).read_bytes()
    if generator.random() < 0.2:
        text = damaged(text, generator)
    else:
        text = json.dumps(altered(json.loads(text), generator)).encode()
    (folder / WEIGHTS_FILE).write_bytes((originals / WEIGHTS_FILE).read_bytes())
    (folder / HEADER_FILE).write_bytes(text)
    _use(folder)


def _use(source: Path) -> None:
    """Load a model, and reconstruct one event with it if that is of its detector."""
    model = load_model(source)
    events = pflow.read_events(DATA / "multi_test_small.root", entry_stop=1)
    events = dataclasses.replace(events.without_truth(), hits=events.hits[:, :200])
    _check(pflow.reconstruct(events, model, device="cpu", max_particles=20), events)


def _check(reconstruction: Reconstruction, events: Events) -> None:
    assert len(reconstruction) == len(events), "entries are missing"
    assert reconstruction.finite().all(), "particles with numbers that are not finite"
    n_particles = ak.to_numpy(ak.num(reconstruction.particles))
    assert not n_particles[_given_up(reconstruction)].any(), "particles of an event that was given up"


def _given_up(reconstruction: Reconstruction) -> np.ndarray:
    return (reconstruction.flags & np.uint32(Flag.BAD_INPUT | Flag.NOT_FINITE)) > 0


def _configuration(originals: Path, folder: Path, generator: Generator) -> None:
    kind = picked(("detector", "layout"), generator)
    original = picked(sorted((config_dir() / kind).glob("*.yaml")), generator).read_bytes()
    path = folder / "configuration.yaml"
    if generator.random() < 0.3:
        path.write_bytes(damaged(original, generator))
    else:
        path.write_text(yaml.safe_dump(altered(yaml.safe_load(original), generator), allow_unicode=True), "utf-8")
    if kind == "detector":
        pflow.read_events(originals / "flat.root", detector=load_detector(path), entry_stop=1)
    else:
        load_layout(path)
        pflow.read_events(originals / "flat.root", layout=path, detector="ild_g4", entry_stop=1)


NUMBERS = (0.0, -1.0, 1e-30, 1e6, 1e12, 1e30, 3e38, -3e38, np.nan, np.inf, -np.inf)
INTEGERS = (-1, -(2**31), 2**31 - 1, 9, 1000, 10**6)


def _strange_event(originals: Path, folder: Path, generator: Generator) -> None:
    """An event with impossible, unknown or extreme numbers."""
    events = pflow.read_events(originals / "flat.root")
    spoilt = int(generator.integers(len(events)))
    for _ in range(int(generator.integers(1, 4))):
        part = picked(("hits", "tracks"), generator)
        records = getattr(events, part)
        fields = [field for field in records.fields if not records[field].fields]
        fields += [f"{outer}.{inner}" for outer in records.fields for inner in records[outer].fields]
        events = dataclasses.replace(events, **{part: _spoilt(records, fields, spoilt, generator)})
    model = load_model(MODEL if generator.random() < 0.5 else "general")
    on_error = "skip" if generator.random() < 0.7 else "raise"
    reconstruction = pflow.reconstruct(events, model, device="cpu", on_error=on_error, max_particles=30)
    _check(reconstruction, events)
    others = np.arange(len(events)) != spoilt
    assert not _given_up(reconstruction)[others].any(), "a good event was given up"


def _spoilt(records: ak.Array, fields: list[str], entry: int, generator: Generator) -> ak.Array:
    outer, _, inner = picked(fields, generator).partition(".")
    holder, name = (records[outer], inner) if inner else (records, outer)
    counts = ak.to_numpy(ak.num(records))
    values = ak.to_numpy(ak.flatten(holder[name])).copy()
    begin, end = int(counts[:entry].sum()), int(counts[: entry + 1].sum())
    value = picked(INTEGERS if values.dtype.kind in "iu" else NUMBERS, generator)
    if generator.random() < 0.5 and end > begin:
        end = begin + 1
    with np.errstate(over="ignore"):
        values[begin:end] = value
    changed = ak.with_field(holder, ak.unflatten(values, counts), name)
    return ak.with_field(records, changed, outer) if inner else changed


WORDS = (
    *("inspect", "convert", "reconstruct", "evaluate", "display", "calibrate", "export", "recipe", "detector", "fit"),
    *("scan", "--vary", "cells=2", "layers=2,4", "radius=1"),
    *("--checkpoint", "-o", "--output", "--truth", "--on-error", "skip", "--device", "meta", "cuda:99", "cpu"),
    *("--max-particles", "0", "-1", "99999999999", "1e9", "nan", "--chunk-size", "--entry", "--reco", "--format"),
    *("--detector", "cld", "--schema", "flat", "--layout", "g4", "--rule", "calo", "--json", "--help", "--debug", "--"),
    *("{flat}", "{reco}", "{model}", "{h5}", "{folder}", "{folder}/out.root", "{folder}/out.h5", "{folder}/out.png"),
    *("/dev/null", "/proc/x.root", "root://nowhere.invalid//x", "*.root", "", "-", "é", "{flat}/x"),
)
"""Words for wrong command lines."""


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of the files below a folder, by their paths in it."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _command(originals: Path, folder: Path, generator: Generator) -> None:
    """A wrong use of the command line, which must not change the originals."""
    names = {"flat": originals / "flat.root", "reco": originals / "reco_ttree.root", "h5": originals / "legacy.h5"}
    names |= {"model": originals, "folder": folder}
    words = [picked(WORDS[:10], generator), *(picked(WORDS, generator) for _ in range(int(generator.integers(0, 9))))]
    words = [word.format(**names) for word in words]
    os.chdir(folder)
    before = digests(originals)
    print(shlex.join(words), flush=True)
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            code = main(words)
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else 0
    print(said.getvalue(), flush=True)
    assert code in EXIT_CODES, f"exit code {code}"
    assert "unexpected" not in said.getvalue(), said.getvalue()
    assert digests(originals) == before, "an original was changed"
    if code:
        raise ConfigError(f"exit code {code}")


KINDS: dict[str, Callable[[Path, Path, Generator], None]] = {
    "flat ntuple (TTree)": functools.partial(_events, "flat.root"),
    "EDM4hep (TTree)": functools.partial(_events, "edm4hep_ttree.root"),
    "EDM4hep (RNTuple)": functools.partial(_events, "edm4hep_rntuple.root"),
    "HDF5": functools.partial(_events, "legacy.h5"),
    "reconstruction (TTree)": functools.partial(_reconstruction, "reco_ttree.root"),
    "reconstruction (RNTuple)": functools.partial(_reconstruction, "reco_rntuple.root"),
    "checkpoint, bytes": _checkpoint,
    "checkpoint, header": _checkpoint_header,
    "weights, bytes": _weights,
    "weights, header": _weights_header,
    "configuration": _configuration,
    "strange event": _strange_event,
    "command line": _command,
}
"""By name in the report: runs a case with the folder of the originals, a folder of its own, and random numbers."""
