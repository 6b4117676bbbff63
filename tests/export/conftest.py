"""Inference as a program without pflow would do it: numpy, onnxruntime and what stands in the exported folder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.cpp import compile_library, compile_program
from pflow.checkpoint.load import Model
from pflow.checkpoint.migrate import migrate_model_options
from pflow.io.open import read_events
from pflow.model.api import ModelInputs, build_reconstructor
from pflow.tokens.config import TokenConfig
from pflow.tokens.tokeniser import Tokeniser

TRACK_FEATURES = ("log_pt", "nx", "ny", "nz", "charge", "calo_x", "calo_y", "calo_z")
TRACKER_HIT_FEATURES = ("x", "y", "z")
MAX_PARTICLES = 6


class Exported:
    """The exported folder, used as its `how_to` says."""

    def __init__(self, folder: Path) -> None:
        runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
        self.text = json.loads((folder / "tokens.json").read_text(encoding="utf-8"))
        self.encoder, self.step = (
            runtime.InferenceSession(str(folder / self.text[graph]["file"]), providers=["CPUExecutionProvider"])
            for graph in ("encoder", "step")
        )

    def tokens(self, part: str, values: np.ndarray) -> np.ndarray:
        """Step 1: physical values [N, F] to tokens."""
        columns = []
        for feature, column in zip(self.text["source"][part]["features"], values.T, strict=True):
            if feature["transform"] == "log10":
                column = np.log10(np.maximum(column, self.text["log10_floor"]))
            columns.append((column - feature["mean"]) / feature["std"])
        return np.stack(columns, axis=1).astype(np.float32)

    def generate(self, source: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Steps 3 to 6: the encoder's inputs by name, to particles [B, max_particles]."""
        memory = _run(self.encoder, {spec["name"]: source[spec["name"]] for spec in self.text["encoder"]["inputs"]})
        specs = {spec["name"]: spec for spec in self.text["step"]["inputs"]}
        B = len(memory["memory_mask"])
        past = {
            name: np.zeros((B, spec["shape"][1], 0, spec["shape"][3]), dtype=spec["dtype"])
            for name, spec in specs.items()
            if name.startswith("past_")
        }
        last = {
            name: np.zeros((B, *spec["shape"][1:]), spec["dtype"]) for name, spec in specs.items() if "last" in name
        }
        last["last_kind"][:] = self.text["kinds"]["bos"]
        first, end, ended = self.text["first_class"], self.text["end"], np.zeros(B, dtype=bool)
        decoded = []
        for _ in range(self.text["max_particles"] + 1):
            out = _run(self.step, {**last, **memory, **past})
            candidates = out[end["output"]][:, end["first_class"] :]
            ended = ended | (candidates.argmax(1) + end["first_class"] == end["class"])
            charge, pdg = (out[f"{name}_logits"][:, first:].argmax(1) for name in ("charge", "pdg"))
            exponential = np.exp(out["pdg_logits"][:, first:].astype(np.float64))
            score = (exponential / exponential.sum(1, keepdims=True))[np.arange(B), pdg]
            particle = {"charge": charge, "pdg": pdg, "energy": out["energy"], "direction": out["direction"]}
            decoded.append({**particle, "score": score, "mask": ~ended})
            last = {f"last_{name}": value for name, value in particle.items()}
            last["last_kind"] = np.full(B, self.text["kinds"]["sample"])
            past = {name.replace("present_", "past_"): v for name, v in out.items() if name.startswith("present_")}
        truncated = decoded.pop()["mask"]
        return {**{name: np.stack([w[name] for w in decoded], axis=1) for name in decoded[0]}, "truncated": truncated}

    def particles(self, generated: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Step 7: generated particles to physical ones, those of all events one after the other."""
        mask = generated["mask"]
        entries = [self.text["pdg"][i] for i in generated["pdg"][mask]]
        code, own, mass = (np.array([entry[key] for entry in entries]) for key in ("code", "charge", "mass"))
        sign = np.where(np.array(self.text["charge"])[generated["charge"][mask]] * own < 0, -1, 1)
        scale = self.text["energy"]
        energy = 10.0 ** (generated["energy"][mask].astype(np.float64) * scale["std"] + scale["mean"])
        least = self.text["rest_momentum"] * mass
        squared = energy**2 - mass**2
        momentum = np.where(squared < least**2, least, np.sqrt(np.maximum(squared, 0)))
        direction = generated["direction"][mask]
        unit = direction / np.linalg.norm(direction, axis=1, keepdims=True)
        return {
            "pdg": sign * code,
            "charge": sign * own,
            "mass": mass,
            "energy": np.sqrt(momentum**2 + mass**2),
            **{key: momentum * unit[:, axis] for axis, key in enumerate(("px", "py", "pz"))},
        }


def _run(session, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """The C++ library, compiled; skip modules of tests where `missing_for_cpp`."""
    return compile_library(tmp_path_factory.mktemp("cpp"), flags="-O1")


@pytest.fixture(scope="session")
def program(library):
    """The example program."""
    return compile_program(library, flags="-O1")


@pytest.fixture(scope="session")
def open_folder():
    return Exported


@pytest.fixture(scope="session")
def events(sample_dir):
    return read_events(sample_dir / "multi_test_small.root")


@pytest.fixture(scope="session")
def tokenisers(events):
    """By the source of the network."""
    tracks = {"track_features": TRACK_FEATURES}
    recipes = {
        "hits": TokenConfig(hit_energy_min=0.01),
        "cross": TokenConfig(**tracks),
        "typed": TokenConfig(**tracks, tracker_hit_features=TRACKER_HIT_FEATURES),
    }
    return {source: Tokeniser.fit([events], recipe) for source, recipe in recipes.items()}


@pytest.fixture(scope="session")
def make_model(tokenisers):
    """A small model with random weights."""

    def make(*, seed: int = 0, source: str = "hits", **arguments) -> Model:
        tokeniser = tokenisers[source]
        sizes = {"width": 16, "heads": 2, "encoder_layers": 2, "decoder_layers": 2, "feedforward": 32}
        if arguments.get("decoder") == "multi_projection":
            sizes["n_projections"] = 2
        torch.manual_seed(seed)
        network = build_reconstructor(
            migrate_model_options({"source": source, **sizes, **arguments}, max_particles=MAX_PARTICLES),
            ModelInputs(**tokeniser.model_inputs),
        )
        return Model(
            reconstructor=network.eval(),
            tokeniser=tokeniser,
            digest="5" * 64,
            path="made-by-hand.ckpt",
            config={},
        )

    return make
