from __future__ import annotations

import argparse

import awkward as ak
import numpy as np
import pytest
import torch

from pflow.checkpoint.format import KEY, pack_header
from pflow.checkpoint.load import PREFIX, load_model
from pflow.checkpoint.migrate import migrate_model_options
from pflow.cli import calibrate
from pflow.errors import ConfigError
from pflow.inference.events import reconstruct
from pflow.io.open import read_events
from pflow.model.api import ModelInputs, build_reconstructor
from pflow.tokens.recipe import Recipe
from pflow.tokens.tokeniser import Tokeniser


def run(*words: object) -> int:
    parser = argparse.ArgumentParser()
    calibrate.add_arguments(parser)
    return calibrate.run(parser.parse_args([str(word) for word in words]))


@pytest.fixture(scope="module")
def calibrated(sample_dir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("calibrate") / "photon"
    file = sample_dir / "gamma1_val_small.root"
    assert run(file, "--checkpoint", "ild-g4-photon", "-o", folder) == 0
    return folder


def test_the_particles_stay_and_their_covariances_change(calibrated, sample_dir):
    events = read_events(sample_dir / "gamma1_test_small.root", entry_stop=20)
    model = load_model(calibrated)
    assert set(model.calibration.energy) == {"photon"}
    before, after = (reconstruct(events, one).particles for one in ("ild-g4-photon", model))
    np.testing.assert_array_equal(ak.flatten(before.energy), ak.flatten(after.energy))
    assert not np.allclose(ak.to_numpy(ak.flatten(before.covariance)), ak.to_numpy(ak.flatten(after.covariance)))


def test_calibrating_again_changes_nothing(calibrated, sample_dir, tmp_path):
    """A calibration takes the place of an earlier one."""
    run(sample_dir / "gamma1_val_small.root", "--checkpoint", calibrated, "-o", tmp_path / "again")
    assert load_model(tmp_path / "again").calibration == load_model(calibrated).calibration


def test_the_best_eos_threshold_is_kept(sample_dir, tmp_path, capsys):
    """Where decoding stops at once, no energy is found and none is fake."""
    file = sample_dir / "gamma1_val_small.root"
    options = ["--checkpoint", "ild-g4-photon", "--eos-threshold", 1e-30, 0.6, "-o", tmp_path / "out"]
    assert run(file, *options) == 0
    keep = load_model("ild-g4-photon").reconstructor.decoding.existence_threshold
    said = f"eos_threshold 1e-30, existence_threshold {keep:g}: energy-weighted efficiency less fake energy fraction"
    assert f"{said} 0.0000" in capsys.readouterr().out
    assert load_model(tmp_path / "out").reconstructor.decoding.eos_threshold == 0.6


def test_a_probability_above_1_is_refused(sample_dir, tmp_path):
    options = ["--checkpoint", "ild-g4-photon", "--eos-threshold", 1.5, "-o", tmp_path / "out"]
    with pytest.raises(ConfigError, match=r"eos_threshold: 1\.5"):
        run(sample_dir / "gamma1_val_small.root", *options)


def untrained(folder, file, network, recipe):
    """A checkpoint with random weights."""
    tokeniser = Tokeniser.fit([read_events(file, entry_stop=5)], recipe)
    header = pack_header(tokeniser=tokeniser, network=network, loss={}, max_particles=3, provenance={}, version="1")
    weights = build_reconstructor(migrate_model_options(network), ModelInputs(**tokeniser.sizes)).state_dict()
    path = folder / "untrained.ckpt"
    torch.save({KEY: header, "state_dict": {f"{PREFIX}{name}": value for name, value in weights.items()}}, path)
    return path


def test_the_existence_threshold_is_chosen_where_there_is_a_refinement(sample_dir, tmp_path, capsys):
    file = sample_dir / "gamma1_val_small.root"
    network = {"architecture": "pointing", "width": 8, "heads": 1, "hidden": 4, "feedforward": 8}
    options = ["--existence-threshold", 0.4, 0.99, "-o", tmp_path / "out"]
    plain = untrained(tmp_path, file, network, Recipe(readout=True))
    with pytest.raises(ConfigError, match=r"--existence-threshold: .*untrained\.ckpt has no refinement"):
        run(file, "--checkpoint", plain, *options)
    path = untrained(tmp_path, file, {**network, "revise_layers": 1, "end": 0.999}, Recipe(readout=True))
    assert run(file, "--checkpoint", path, *options) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "efficiency less fake" in line]
    assert [line.split(":")[0] for line in lines] == [
        f"eos_threshold 0.999, existence_threshold {p}" for p in (0.4, 0.99)
    ]
    scores = {keep: float(line.split()[-1]) for keep, line in zip((0.4, 0.99), lines, strict=True)}
    assert scores[0.99] == 0.0  # no particle of a network with initial weights is that probable
    assert load_model(tmp_path / "out").reconstructor.decoding.existence_threshold == max(scores, key=scores.get)


def test_a_model_that_predicts_no_uncertainties_is_refused(sample_dir, tmp_path):
    file = sample_dir / "gamma1_val_small.root"
    network = {"width": 8, "heads": 1, "encoder_layers": 1, "decoder_layers": 1, "feedforward": 8}
    path = untrained(tmp_path, file, network, Recipe())
    with pytest.raises(ConfigError, match="predicts no uncertainties; there is nothing to calibrate"):
        run(file, "--checkpoint", path, "-o", tmp_path / "out")
    assert not (tmp_path / "out").exists()
