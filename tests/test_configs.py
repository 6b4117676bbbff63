"""The configurations and recipes that come with pflow: what they compose to, and that each of them trains."""

import contextlib
import dataclasses
import functools
import io
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import pytest
import yaml

from pflow.checkpoint import load_model
from pflow.cli import fit
from pflow.cli.recipe import load_recipe
from pflow.config import config_dir, to_plain
from pflow.inference.events import reconstruct
from pflow.io.flat import write_events
from pflow.io.open import read_events

pytestmark = pytest.mark.usefixtures("no_figures")

SET_UPS = [("paper", 0, name) for name in ("v2_kind", "as_published_v2_flags", "tracks_cross")]
SET_UPS += [("paper", 3, "tracks_typed")]
SET_UPS += [("general", 0, "one"), ("general", 1, "one"), ("photon", 2, None)]
"""Recipe, stage and variant of those that are trained; the other variants of the paper differ in one layer or sum."""

SMALL = ("width=8", "heads=2", "encoder_layers=1", "decoder_layers=1", "feedforward=16")
"""Sizes of the network in a short training."""


@functools.cache
def options(recipe: str, stage: int, variant: str | None) -> dict[str, Any]:
    """What `pflow fit --print-config` prints of a set-up."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), tempfile.TemporaryDirectory() as folder:
        words = load_recipe(recipe).variant(variant).write(Path(folder, "recipe.yaml"), stage)
        assert fit.main("fit", [*words, "--print-config"]) == 0
    return yaml.safe_load(printed.getvalue())


def flat(group: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    options = {}
    for name, value in group.items():
        options |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return options


@pytest.mark.parametrize("path", sorted(config_dir().rglob("*.yaml")), ids=lambda path: path.stem)
def test_no_configuration_names_a_path_of_a_machine(path):
    text = path.read_text("utf-8")
    assert re.findall(r"(?:^|[\s\"'\[{,:=])(?:/|~|[A-Za-z]:\\)[\w.-]+", text, flags=re.MULTILINE) == []


@pytest.mark.parametrize("name", load_recipe("paper").variants)
def test_a_variant_differs_in_the_stated_fields_alone(name):
    form = "as_published_" if name.startswith("as_published_") else ""

    def differing(of: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
        ours, reference = (flat(of(which)) for which in (name, f"{form}v1_kind"))
        return {key: ours.get(key) for key in ours | reference if ours.get(key) != reference.get(key)}

    stated = differing(lambda which: load_recipe("paper").variant(which).stages[0])
    assert bool(stated) == (name != f"{form}v1_kind")
    assert differing(functools.partial(options, "paper", 0)) == stated


@pytest.mark.parametrize(
    ("name", "set_up"),
    [
        ("general", ("general", 0, "energies")),
        ("ild-g4-photon", ("photon", 2, None)),
        ("ild-g4-translation", ("paper", 4, "tracks_typed")),
    ],
)
def test_recipes_are_those_of_the_shipped_models(name, set_up):
    model, recipe = load_model(name), options(*set_up)
    shipped, configured = model.config["model"], recipe["model"]["reconstructor"]
    assert shipped["class_path"] == configured["class_path"]
    for part in shipped["init_args"].keys() - {"decoding"}:
        expected = configured["init_args"][part]
        given = {**expected, **shipped["init_args"][part]}
        if part == "loss":  # weights of losses that came later have no effect on what was trained before
            given = {"weights": {**expected["weights"], **given["weights"]}}
        assert given == expected, part
    tokens = to_plain(model.tokeniser.config)
    del tokens["readout"]
    assert {key: value for key, value in tokens.items() if value != recipe["data"][key]} == {}
    assert model.config["provenance"]["repeat"] == (recipe["data"]["repeat"] or {})
    assert model.config["provenance"]["lr"] == recipe["model"]["lr"]


@pytest.fixture(scope="module")
def sample(sample_dir, tmp_path_factory) -> Path:
    """Eight events of two to six particles of many kinds: two batches."""
    path: Path = tmp_path_factory.mktemp("sample") / "eight.root"
    write_events(path, read_events(sample_dir / "multi_test_small.root", entry_stop=8))
    return path


@pytest.fixture(scope="module")
def trained(sample, tmp_path_factory):
    """Makes, once, the checkpoint that two steps of a set-up leave, after two of its recipe's first stage."""

    @functools.cache
    def train(recipe: str, stage: int, variant: str | None):
        folder = tmp_path_factory.mktemp(recipe)
        arguments = [
            *load_recipe(recipe).variant(variant).write(folder / "recipe.yaml", stage),
            *(f"--model.reconstructor.network.{size}" for size in SMALL),
            *(f"--data.train={sample}", f"--data.val={sample}", "--data.repeat=null"),
            *("--data.batch_size=4", "--data.hit_energy_min=0.02"),
            "--model.reconstructor.decoding.max_particles=5",
            *("--trainer.max_epochs=1", "--trainer.max_steps=2", "--trainer.limit_val_batches=2"),
            *("--trainer.val_check_interval=2", "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"),
            *([f"--start-from={train(recipe, 0, variant)}"] if stage else []),
            f"--output={folder}",
        ]
        assert fit.main("fit", arguments) == 0
        (checkpoint,) = folder.rglob("best.ckpt")
        return checkpoint

    return train


@pytest.mark.filterwarnings("ignore:.*the model was trained on this file", "ignore:events have more target particles")
@pytest.mark.parametrize("set_up", SET_UPS, ids=lambda names: "-".join(map(str, names)))
def test_a_set_up_is_trained_saved_loaded_and_reconstructs(set_up, trained, sample):
    model, expected = load_model(trained(*set_up)), options(*set_up)
    network = model.config["model"]["init_args"]["network"]
    for field in set(network) - {size.partition("=")[0] for size in SMALL}:
        assert network[field] == expected["model"]["reconstructor"]["init_args"]["network"][field], field
    assert list(model.tokeniser.config.track_features) == expected["data"]["track_features"]
    events = read_events(sample)
    # Without an end: after a few steps of training the most probable may be nothing.
    decoding = dataclasses.replace(model.reconstructor.decoding.limited(4), eos_threshold=1.0)
    reco = reconstruct(events, model, device="cpu", decoding=decoding)
    assert reco.event.tolist() == events.event.tolist()
    energy = ak.to_numpy(ak.flatten(reco.particles.energy))
    assert len(energy) > 0
    assert np.isfinite(energy).all()
