"""The configurations that come with pflow: what they compose to, and that each of the paper's set-ups trains."""

from __future__ import annotations

import contextlib
import functools
import io
import re
from typing import Any

import awkward as ak
import numpy as np
import pytest
import yaml

from pflow.checkpoint.format import read_checkpoint
from pflow.checkpoint.load import load_model
from pflow.checkpoint.migrate import migrate_model_options
from pflow.cli.fit import main
from pflow.data.datamodule import ParticleFlowData
from pflow.inference.events import reconstruct
from pflow.io.open import read_events
from pflow.model.api import ModelInputs, build_reconstructor
from pflow.resources import config_dir
from pflow.train.module import ParticleFlow

TRACKS = ["log_p", "nx", "ny", "nz", "charge", "calo_x", "calo_y", "calo_z"]
DIFFERENCES: dict[str, dict[str, Any]] = {
    "paper_v1_flags": {"network.special": "flags"},
    "paper_v1_kind": {},
    "paper_v2_kind": {"network.decoder": "multi_projection", "network.n_projections": 2, "network.embedder": "v2"},
    "tracks_cross": {"network.source": "cross", "data.track_features": TRACKS},
    "tracks_typed": {
        "network.source": "typed",
        "data.track_features": TRACKS,
        "data.tracker_hit_features": ["x", "y", "z"],
    },
}
"""The set-ups, and in what each of them is not paper_v1_kind."""

FLAGSHIPS = tuple(f"flagship_{model}{stage}" for model in ("general", "photon") for stage in ("", "_2", "_3"))

SMALL = ("width=8", "heads=2", "encoder_layers=1", "decoder_layers=1", "feedforward=16")
"""Sizes of the network in a short training."""

STEMS = sorted(path.stem for path in config_dir().glob("*.yaml") if path.stem != "base")


def stacked(name: str) -> list[str]:
    """Options with a configuration; a later stage changes those before."""
    return [f"--config={config_dir() / one}.yaml" for one in (*before(name), name)]


def before(name: str) -> list[str]:
    """The stages before a stage of a flagship, the first one first."""
    first, _, number = name.rpartition("_")
    if not number.isdecimal():
        return []
    return [first, *(f"{first}_{stage}" for stage in range(2, int(number)))]


@functools.cache
def composed(name: str) -> dict[str, Any]:
    """What `pflow fit --config ... --print_config` prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main(["fit", *stacked(name), "--print_config"]) == 0
    return yaml.safe_load(printed.getvalue())


def flat(group: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found = {}
    for name, value in group.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return found


def test_the_set_ups_are_there():
    assert {*DIFFERENCES, *FLAGSHIPS} <= set(STEMS)


@pytest.mark.parametrize("name", STEMS)
def test_a_configuration_composes_and_builds_its_network_on_a_sample(name, sample_dir):
    config = composed(name)
    sample = str(sample_dir / "multi_test_small.root")
    data = ParticleFlowData(**{**config["data"], "train": sample, "val": sample})
    data.setup("fit")
    module = ParticleFlow(network=config["network"], loss=config["loss"])
    spec = migrate_model_options(module.network_arguments, module.loss_arguments)
    reconstructor = build_reconstructor(spec, ModelInputs(**data.tokeniser.sizes))
    labelled = next(iter(data.val_dataloader()))
    total = reconstructor.training_step(labelled.batch).losses["total"]
    assert np.isfinite(total.item())


@pytest.mark.parametrize("path", sorted(config_dir().rglob("*.yaml")), ids=lambda path: path.stem)
def test_no_configuration_names_a_path_of_a_machine(path):
    text = path.read_text("utf-8")
    assert re.findall(r"(?:^|[\s\"'\[{,:=])(?:/|~|[A-Za-z]:\\)[\w.-]+", text, flags=re.MULTILINE) == []


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_set_up_differs_in_the_stated_fields_alone(name):
    ours, reference = (flat(composed(which)) for which in (name, "paper_v1_kind"))
    changed = {key: value for key, value in ours.items() if value != reference[key]}
    changed.pop("output", None)
    changed.pop("checkpoint.dirpath", None)
    assert changed == DIFFERENCES[name]
    assert ours.keys() == reference.keys()


def test_a_flagship_points_at_all_hits_and_the_general_one_reads_tracks():
    data = {name: composed(name)["data"] for name in FLAGSHIPS}
    assert {composed(name)["network"]["architecture"] for name in FLAGSHIPS} == {"pointing"}
    assert all(one["readout"] and one["hit_energy_min"] == 0 for one in data.values())
    for name, one in data.items():
        assert bool(one["track_features"]) == name.startswith("flagship_general")


def two_steps(name, folder, sample, *more):
    """The checkpoint that two steps of a set-up leave."""
    arguments = [
        *stacked(name),
        *(f"--network.{option}" for option in SMALL),
        f"--data.train={sample}",
        f"--data.val={sample}",
        "--data.batch_size=4",
        "--data.hit_energy_min=0.02",
        "--model.max_particles=5",
        "--trainer.max_epochs=1",
        "--trainer.limit_train_batches=2",
        "--trainer.limit_val_batches=2",
        "--trainer.val_check_interval=2",
        "--trainer.accelerator=cpu",
        "--trainer.enable_progress_bar=false",
        f"--output={folder}",
        *more,
    ]
    assert main(["fit", *arguments]) == 0
    (checkpoint,) = folder.rglob("best.ckpt")
    return checkpoint


@pytest.fixture(scope="module", params=[*DIFFERENCES, *FLAGSHIPS])
def trained(request, sample_dir, tmp_path_factory):
    """Name of a set-up and the checkpoint that two steps of it leave."""
    name, sample = request.param, str(sample_dir / "multi_test_small.root")
    folder = tmp_path_factory.mktemp(name)
    more = []
    if composed(name)["network"]["revise_layers"]:
        more = [f"--start_from={two_steps(before(name)[0], folder / 'before', sample)}"]
    return name, two_steps(name, folder / "run", sample, *more)


def test_a_set_up_is_saved_and_loaded_as_it_was_trained(trained):
    name, checkpoint = trained
    network = read_checkpoint(checkpoint).header["network"]
    expected = composed(name)["network"]
    for field in set(network) - {option.partition("=")[0] for option in SMALL}:
        assert network[field] == expected[field], field
    model = load_model(checkpoint)
    assert list(model.tokeniser.recipe.track_features) == composed(name)["data"]["track_features"]


def test_a_set_up_reconstructs(trained, sample_dir):
    _, checkpoint = trained
    events = read_events(sample_dir / "multi_test_small.root")
    found = reconstruct(events, checkpoint, device="cpu")
    assert found.event.tolist() == events.event.tolist()
    energy = ak.to_numpy(ak.flatten(found.particles.energy))
    assert len(energy) > 0
    assert np.isfinite(energy).all()
