import re
from datetime import timedelta
from types import SimpleNamespace
from unittest.mock import Mock

import awkward as ak
import numpy as np
import pytest
import torch
from torch import nn

import pflow.cli.fit
from pflow.checkpoint import load_model
from pflow.cli.main import main as cli_main
from pflow.data.batch import Target
from pflow.errors import ConfigError
from pflow.io.open import read_events
from pflow.model.api import DecodingConfig
from pflow.model.translation import TranslationReconstructor
from pflow.train.callbacks import read_history
from pflow.train.module import Muon, ParticleFlow, orthogonal, warmup_cosine, wrong_energy

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # by torch


@pytest.mark.parametrize(
    ("options", "minutes", "n_calls", "saved"),
    [([], 5, 3, None), (["--trainer.limit_train_batches=2"], 5, 2, None), ([], 0, 2, 1)],
    ids=["one step late", "at the end of an epoch", "before a checkpoint"],
)
def test_a_loss_that_is_not_finite_stops_and_names_the_events(
    data, tmp_path, tiny, monkeypatch, capsys, options, minutes, n_calls, saved
):

    def step(self, batch):
        losses = {name: torch.zeros((), requires_grad=True) for name in ("energy", "total")}
        if step.calls == 1:
            losses = {name: loss + float("nan") for name, loss in losses.items()}
        step.calls += 1
        return losses

    step.calls = 0
    monkeypatch.setattr("pflow.model.translation.TranslationReconstructor.training_step", step)
    monkeypatch.setattr("pflow.cli.fit.SAVE_EVERY", timedelta(minutes=minutes))
    assert cli_main(["fit", *tiny, *data, "--data.batch_size=8", *options]) == 1
    message = r"not a finite number \(energy\) in the batch of .*gamma1_val_small.root, entries \d+(, \d+){7};"
    assert re.search(message, capsys.readouterr().err)
    assert step.calls == n_calls
    steps = [torch.load(path, weights_only=True)["global_step"] for path in (tmp_path / "run").glob("*.ckpt")]
    assert steps == ([] if saved is None else [saved])


@pytest.fixture
def draws(data, tmp_path, tiny, monkeypatch):
    """Numbers that the model draws in each training batch of a fit, and those that all ranks share."""
    found: list[tuple[float, float]] = []
    real = TranslationReconstructor.training_step

    def step(self, batch):
        if self.training:
            found.append((float(torch.rand(())), self.shared))
        return real(self, batch)

    def fit(*options: str) -> list[tuple[float, float]]:
        found.clear()
        words = ["--trainer.max_epochs=1", "--trainer.limit_val_batches=0", f"--output={tmp_path / str(options)}"]
        pflow.cli.fit.main("fit", [*tiny, *data, *words, *options])
        return [*found]

    monkeypatch.setattr(TranslationReconstructor, "training_step", step)
    monkeypatch.setattr(
        TranslationReconstructor, "draw_shared", lambda self, random: vars(self).update(shared=random.random())
    )
    return fit


def test_batches_and_ranks_draw_numbers_of_their_own_but_for_those_shared(draws, monkeypatch):
    alone = draws()
    assert len(alone) == 3
    assert len({number for pair in alone for number in pair}) == 6
    monkeypatch.setattr(ParticleFlow, "global_rank", 1)
    second = draws("--seed_everything=1", "--trainer.accumulate_grad_batches=2")
    assert [shared for _, shared in alone] == [shared for _, shared in second]
    assert not {number for number, _ in alone} & {number for number, _ in second}


def test_the_rate_rises_linearly_and_falls_as_half_a_cosine():
    factor = warmup_cosine(total=12, warmup=4, final=0.2)
    assert [factor(step) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    # Half way the cosine is 0, so the factor is (1 + 0.2) / 2.
    assert [factor(step) for step in (8, 12, 50)] == pytest.approx([0.6, 0.2, 0.2])
    constant = warmup_cosine(total=10, warmup=2, final=1.0)
    assert [constant(step) for step in range(1, 12)] == [1.0] * 11
    assert warmup_cosine(total=2, warmup=2, final=0.0)(2) == 1.0  # no step after the warm-up


X, Y, Z = torch.eye(3)


def test_the_wrong_energy_by_hand_counts_all_fakes():
    """Targets of 10 and 2 GeV, found with 8 GeV and not at all, and a fake of 1 GeV; the second event is right."""
    true = _particles([[10.0, 2.0], [5.0, 0.0]], [[X, Y], [Z, Z]])
    decoded = _particles([[1.0, 8.0], [5.0, 0.0]], [[Z, X], [Z, Z]])
    model = Mock(decoding=DecodingConfig(), inputs=SimpleNamespace(energy_mean=0.5, energy_std=2.0))
    model.generate.return_value = _decoded(decoded)
    assert wrong_energy(model, SimpleNamespace(target=true)) == pytest.approx((2.0 + 2.0 + 1.0, 17.0), rel=1e-5)
    true = _particles([[10.0] + 39 * [0.0]], [40 * [X]])
    model.generate.return_value = _decoded(_particles([[10.0] + 39 * [1.0]], [[X] + 39 * [Z]]))
    assert wrong_energy(model, SimpleNamespace(target=true)) == pytest.approx((39.0, 10.0), rel=1e-5)
    assert "decoding" not in model.generate.call_args.kwargs  # the model's own limits
    true = _particles([[10.0, 5.0]], [[X, Z]])
    model.generate.return_value = _decoded(_particles([[10.0]], [[X]]), truncated=True)
    model.decoding = DecodingConfig(max_particles=1)
    with pytest.warns(UserWarning, match=r"more target particles than are decoded.*decoding\.max_particles"):
        assert wrong_energy(model, SimpleNamespace(target=true)) == pytest.approx((5.0, 15.0), rel=1e-5)


def _decoded(particles: Target, *, truncated: bool = False) -> SimpleNamespace:
    fields = {name: getattr(particles, name) for name in ("charge", "pdg", "energy", "direction", "mask")}
    return SimpleNamespace(**fields, truncated=torch.tensor([truncated]))


def _particles(energy: list[list[float]], direction: list[list[torch.Tensor]]) -> Target:
    """Particles of these energies, GeV; 0: padding."""
    values = torch.tensor(energy)
    index = torch.zeros_like(values, dtype=torch.int64)
    normalised = (values.clamp(min=1e-3).log10() - 0.5) / 2.0
    unit = torch.stack([torch.stack(row) for row in direction])
    return Target(charge=index, pdg=index, energy=normalised, direction=unit, mask=values > 0)


@pytest.mark.parametrize(
    ("names", "said"),
    [(("total", "loss"), "loss is the name of another"), (("energy",), "total is missing")],
)
def test_losses_of_a_network_have_names_of_their_own(names, said):
    module = SimpleNamespace(reconstructor=None)
    with pytest.raises(ConfigError, match=rf"losses of NoneType\.training_step: {said}"):
        ParticleFlow._log(module, "train", dict.fromkeys(names), 1)


@pytest.mark.usefixtures("no_figures")
@pytest.mark.filterwarnings("ignore::pflow.event.events.ImplausibleWarning")  # of tracks that are in no particle
def test_a_pointing_model_logs_losses_and_gives_links(sample_dir, tmp_path):
    """25 events of two to six particles of many kinds."""
    sample, folder = sample_dir / "multi_test_small.root", tmp_path / "run"
    sizes = ("width=16", "heads=2", "encoder_layers=1", "decoder_layers=1", "feedforward=16", "hidden_width=8")
    options = [
        *(f"--model.reconstructor.network.{size}" for size in sizes),
        *("--model.reconstructor.decoding.max_particles=8", "--model.lr=3e-3", "--data.batch_size=5"),
        *("--data.coarse=true", "--data.order=tracks_first", "--data.merge={ecal_mm: 40, hcal_mm: 180, layers: 10}"),
        "--data.hit_features=[log_energy, nx, ny, nz, ecal]",
        "--data.track_features=[log_p, nx, ny, nz, charge]",
        *("--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false", "--trainer.precision=bf16-mixed"),
        *("--trainer.max_epochs=1", f"--output={folder}", f"--data.train={sample}", f"--data.val={sample}"),
    ]
    assert pflow.cli.fit.main("fit", options) == 0
    history = read_history(folder)
    for name in ("pointer", "eos", "assignment", "pdg", "charge", "energy", "direction", "loss"):
        assert np.isfinite([*history[f"val/{name}"].values()]).all()
    output, events = load_model(folder / "last.ckpt").reconstruct(sample), read_events(sample)
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


@pytest.mark.parametrize("shape", [(96, 96), (96, 192), (192, 96)])
def test_singular_values_become_about_one(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    made = u.T @ orthogonal(matrix) @ v.T
    large = s > 0.1 * s.max()
    assert (made.diagonal()[large] - 1.0).abs().max() < 0.35
    assert (made - made.diagonal().diag()).abs().max() < 1e-3  # its singular vectors are the same
    assert not orthogonal(0.0 * matrix).any()


def test_a_step_is_nesterovs_and_decays_the_weights_also_after_a_resume():
    torch.manual_seed(3)
    weight, momentum = nn.Parameter(torch.randn(32, 64)), torch.zeros(32, 64)
    expected, state = weight.detach().clone(), None
    for gradient in torch.randn(2, 32, 64):
        optimiser = Muon([{"params": [weight], "weight_decay": 0.5}], lr=0.01)
        if state is not None:
            optimiser.load_state_dict(state)
        weight.grad = gradient.clone()
        optimiser.step()
        state = optimiser.state_dict()
        momentum = 0.95 * momentum + 0.05 * gradient
        update = 0.2 * 64**0.5 * orthogonal(0.95 * momentum + 0.05 * gradient)
        expected = (1.0 - 0.01 * 0.5) * expected - 0.01 * update
    torch.testing.assert_close(weight.detach(), expected)


def test_small_matrices_and_vectors_are_adams():
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(32, 64), nn.Linear(64, 2))
    optimiser = Muon([{"params": list(model.parameters()), "weight_decay": 0.0}], lr=0.01)
    assert [group["orthogonal"] for group in optimiser.param_groups] == [True, False]
    assert [len(group["params"]) for group in optimiser.param_groups] == [1, 3]
    before = [parameter.detach().clone() for parameter in model.parameters()]
    model(torch.randn(5, 32)).square().sum().backward()
    optimiser.step()
    change = [(new - old).square().mean().sqrt().item() for new, old in zip(model.parameters(), before, strict=True)]
    assert change[1:] == pytest.approx([0.01] * 3, rel=0.01)
