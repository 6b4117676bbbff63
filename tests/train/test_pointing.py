"""The pointing network through the command line: fit, reconstruct, evaluate by shared hits."""

from pathlib import Path

import awkward as ak
import numpy as np
import pytest

from pflow.checkpoint.load import load_model
from pflow.cli.main import main
from pflow.io.open import read_events
from pflow.io.particles_root import read_reco
from pflow.train.run_folder import read_history

SIZES = ("width=16", "heads=2", "encoder_layers=1", "decoder_layers=1", "feedforward=16", "hidden_width=8")
MODEL = (
    *(f"--model.reconstructor.network.{size}" for size in SIZES),
    "--model.reconstructor.decoding.max_particles=8",
)
DATA = (
    "--data.coarse=true",
    "--data.order=tracks_first",
    "--data.hit_features=[log_energy, nx, ny, nz, ecal]",
    "--data.track_features=[log_p, nx, ny, nz, charge]",
    "--data.merge={ecal_mm: 40, hcal_mm: 180, layers: 10}",
    "--data.batch_size=5",
)
pytestmark = pytest.mark.usefixtures("no_figures")

QUIET = ("--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false")


@pytest.fixture(scope="module")
def sample(sample_dir) -> str:
    """25 events of two to six particles of many kinds."""
    return str(sample_dir / "multi_test_small.root")


@pytest.fixture(scope="module")
def checkpoint(sample, tmp_path_factory) -> str:
    """Of three epochs of five steps."""
    folder = tmp_path_factory.mktemp("pointing") / "run"
    options = ["--model.lr=3e-3", "--trainer.max_epochs=3", f"--output={folder}"]
    assert main(["fit", *MODEL, *DATA, *QUIET, *options, f"--data.train={sample}", f"--data.val={sample}"]) == 0
    return str(folder / "last.ckpt")


@pytest.fixture(scope="module")
def reco(checkpoint, sample, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("reco") / "reco.root"
    assert main(["reconstruct", sample, "--checkpoint", checkpoint, "-o", str(path), "-q"]) == 0
    return str(path)


def test_each_loss_is_logged_by_name_and_the_checkpoint_is_a_model(checkpoint):
    assert load_model(checkpoint).tokeniser.config.readout
    names = ("pointer", "eos", "assignment", "pdg", "charge", "energy", "direction", "loss")
    assert {f"val/{name}" for name in names} <= set(read_history(Path(checkpoint).parent))


def test_a_training_in_mixed_precision_has_finite_losses(sample, tmp_path):
    data = [f"--data.train={sample}", f"--data.val={sample}", f"--output={tmp_path / 'run'}"]
    assert main(["fit", *MODEL, *DATA, *QUIET, *data, "--trainer.precision=bf16-mixed", "--trainer.max_epochs=1"]) == 0
    assert np.isfinite(read_history(tmp_path / "run")["val/loss"][1])


def test_reconstruction_says_which_hits_and_tracks_particles_are_made_of(reco, sample):
    output, events = read_reco(reco), read_events(sample)
    assert ak.all(abs(ak.sum(output.particles.scores, axis=-1) - 1.0) < 1e-3)
    assert ak.all(output.particles.covariance[..., 9] > 0)
    n_particles = ak.num(output.particles)
    assert ak.sum(n_particles) > 0
    for links, sources in ((output.hit_links, events.hits.energy), (output.track_links, events.tracks.charge)):
        assert ak.sum(ak.num(links)) > 0
        assert ak.all(links.source < ak.num(sources))
        assert ak.all(links.particle < n_particles)
        assert ak.all((links.weight > 0) & (links.weight <= 1))
        for event in links:
            assert np.bincount(ak.to_numpy(event.source), ak.to_numpy(event.weight)).max(initial=0) < 1.0 + 1e-4
