"""Trainings that begin with a model of another detector."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from pflow.checkpoint.load import load_model, read_checkpoint
from pflow.cli.main import main
from pflow.io.open import read_events
from pflow.physics.detector import load_detector
from pflow.tokens.features import feature_matrix
from pflow.tokens.tokeniser import Tokeniser
from pflow.tokens.tokens import TokenConfig
from pflow.train.transfer import nearest_subdetectors, transfer_subdetectors, transfer_tokeniser

pytestmark = pytest.mark.usefixtures("no_figures")

HITS = ("log_energy", "nx", "x", "y", "z", "log_r", "layer")


@pytest.fixture(scope="module")
def cld():
    return load_detector("cld")


@pytest.fixture(scope="module")
def ild_events(sample_dir):
    return read_events(sample_dir / "multi_test_small.root")


def test_a_subdetector_takes_the_most_similar_one(cld):
    ild = load_detector("ild_g4")
    names = [None if i is None else ild.calorimeters[i].name for i in nearest_subdetectors(cld, ild)]
    assert names == ["ecal_barrel", "ecal_endcap", "hcal_barrel", "hcal_endcap", "hcal_barrel", None]
    assert nearest_subdetectors(cld, cld) == [0, 1, 2, 3, 4, 5]


def test_columns_of_subdetectors_are_taken_block_by_block():
    weight = torch.arange(6.0).expand(2, 6)  # one other, two blocks of two subdetectors, one other
    changed = transfer_subdetectors({"w": weight, "b": weight}, {"w": (1, 2), "v": (0, 1)}, [1, None, 0], 2)
    assert changed["w"].tolist() == [[0, 2, 0, 1, 4, 0, 3, 5]] * 2
    assert changed["b"] is weight
    assert changed.keys() == {"w", "b"}


def test_a_scaled_event_of_a_scaled_detector_has_the_same_features(ild_events):
    """The features of positions twice as far from the axis, and three times along it, in such a detector."""
    tokeniser = Tokeniser.fit([ild_events], TokenConfig(hit_features=HITS))
    ild = ild_events.detector
    larger = dataclasses.replace(
        ild,
        name="larger",
        **{f"ecal_{name}_radius": 2 * getattr(ild, f"ecal_{name}_radius") for name in ("inner", "outer")},
        ecal_inner_z=3 * ild.ecal_inner_z,
        hcal_inner_radius=None,
        hcal_inner_z=None,
    )
    transferred = transfer_tokeniser(tokeniser, larger)
    assert transferred.detector == larger
    assert transferred.energy == tokeniser.energy
    physical = feature_matrix(ild_events, "hits", HITS)
    scaled = physical * [1, 1, 2, 2, 3, np.sqrt(6.0), 1]
    np.testing.assert_allclose(
        transferred.scales["hits"].apply(scaled), tokeniser.scales["hits"].apply(physical), rtol=1e-5, atol=1e-5
    )


@pytest.fixture(scope="module")
def begun(sample_dir, tmp_path_factory):
    """A training on CLD that begins with the shipped model of the simplified ILD, with a negligible rate."""
    folder = tmp_path_factory.mktemp("cld")
    sample = sample_dir / "cld_multi_test_small.root"
    options = ["--model.lr=1e-12", "--trainer.max_epochs=1", "--trainer.accelerator=cpu", "--data.batch_size=25"]
    options += ["--trainer.enable_progress_bar=false", "--data.layout=cld_g4", f"--output={folder}"]
    options += ["--model.reconstructor.training.joint=true"]
    assert main(["fit", "--start-from=ild-g4-general", f"--data.train={sample}", f"--data.val={sample}", *options]) == 0
    return folder / "last.ckpt"


def test_a_training_begins_with_a_model_of_another_detector(begun, cld):
    model = load_model(begun)
    assert model.tokeniser.detector == cld
    ours, theirs = model.reconstructor.state_dict(), load_model("ild-g4-general").reconstructor.state_dict()
    columns = model.reconstructor.subdetector_columns
    assert len(columns) == 5
    for name, value in theirs.items():
        if name in columns:
            first, blocks = columns[name]
            torch.testing.assert_close(ours[name][:, :first], value[:, :first], rtol=0, atol=1e-6)
            assert ours[name].shape[1] == value.shape[1] + 2 * blocks
            for block in range(blocks):
                new, old = first + 6 * block, first + 4 * block
                torch.testing.assert_close(ours[name][:, new : new + 4], value[:, old : old + 4], rtol=0, atol=1e-6)
                assert not ours[name][:, new + 5].abs().max() > 1e-6  # no muon system there
        else:
            torch.testing.assert_close(ours[name], value, rtol=0, atol=1e-6)
    assert read_checkpoint(begun).header.provenance["began_with"]["sha256"] == read_checkpoint("ild-g4-general").digest


def test_what_was_learned_on_one_detector_serves_on_another(begun, sample_dir, tmp_path):
    """Before any training on it: more than nine in ten particles of CLD are found, as by Pandora."""
    reco, report = str(tmp_path / "reco.root"), tmp_path / "report"
    sample = str(sample_dir / "cld_multi_test_small.root")
    words = ["reconstruct", sample, "--layout", "cld_g4", "--checkpoint", str(begun), "-o", reco, "-q"]
    assert main([*words]) == 0
    options = ["--layout", "cld_g4", "--output", str(report), "--no-plots", "--no-oracle", "-q"]
    assert main(["evaluate", reco, "--truth", sample, *options]) == 0
    metrics = json.loads((report / "metrics.json").read_text())
    assert metrics["n_matched"] > 0.9 * metrics["n_truth"]
    assert metrics["n_reco"] < 1.25 * metrics["n_truth"]
