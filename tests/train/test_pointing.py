"""The pointing network through the command line, in mixed precision: its losses, and what its particles are made of."""

from pathlib import Path

import awkward as ak
import numpy as np
import pytest

from pflow.checkpoint.load import load_model
from pflow.cli.main import main
from pflow.io.open import read_events
from pflow.train.run_folder import read_history


@pytest.fixture(scope="module")
def sample(sample_dir) -> Path:
    """25 events of two to six particles of many kinds."""
    return sample_dir / "multi_test_small.root"


@pytest.fixture(scope="module")
def run(sample, no_figures, tmp_path_factory) -> Path:
    """Folder of a fit of three epochs of five steps."""
    folder = tmp_path_factory.mktemp("pointing") / "run"
    sizes = ("width=16", "heads=2", "encoder_layers=1", "decoder_layers=1", "feedforward=16", "hidden_width=8")
    options = [
        *(f"--model.reconstructor.network.{size}" for size in sizes),
        *("--model.reconstructor.decoding.max_particles=8", "--model.lr=3e-3", "--data.batch_size=5"),
        *("--data.coarse=true", "--data.order=tracks_first", "--data.merge={ecal_mm: 40, hcal_mm: 180, layers: 10}"),
        "--data.hit_features=[log_energy, nx, ny, nz, ecal]",
        "--data.track_features=[log_p, nx, ny, nz, charge]",
        *("--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false", "--trainer.precision=bf16-mixed"),
        *("--trainer.max_epochs=3", f"--output={folder}", f"--data.train={sample}", f"--data.val={sample}"),
    ]
    assert main(["fit", *options]) == 0
    return folder


def test_each_loss_is_logged_by_name_and_finite(run):
    history = read_history(run)
    for name in ("pointer", "eos", "assignment", "pdg", "charge", "energy", "direction", "loss"):
        assert np.isfinite([*history[f"val/{name}"].values()]).all()


@pytest.mark.filterwarnings("ignore::pflow.event.events.ImplausibleWarning")  # of tracks that are in no particle
def test_the_model_says_which_hits_and_tracks_particles_are_made_of(run, sample):
    output, events = load_model(run / "last.ckpt").reconstruct(sample), read_events(sample)
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
