from __future__ import annotations

import copy
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from pflow.errors import ConfigError
from pflow.train.ema import KEY, AveragedWeights, decay_at

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers:UserWarning",
    "ignore:.*isinstance.treespec, LeafSpec.*:FutureWarning",
)


class Line(pl.LightningModule):
    """A linear map that remembers its weight after each step and in each validation."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layer = torch.nn.Linear(2, 1)
        self.after_step: list[float] = [self.weight]
        self.in_validation: list[float] = []

    @property
    def weight(self) -> float:
        return self.layer.weight[0, 0].item()

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        return (self.layer(batch) - batch.sum(1, keepdim=True)).square().mean()

    def on_train_batch_end(self, *_: Any) -> None:
        self.after_step.append(self.weight)

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.in_validation.append(self.weight)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.1)


@pytest.fixture
def fit(tmp_path):
    """Fit for some epochs of four steps, with checkpoints in a folder of the test's."""
    points = torch.randn(8, 2, generator=torch.Generator().manual_seed(5))

    def run(name="run", *, decay=0.9, epochs=2, continued=None, callbacks=(), average=True, **options):
        module = Line()
        saving = ModelCheckpoint(tmp_path / name, filename="best", save_last=True, enable_version_counter=False)
        own = [AveragedWeights(decay)] if average else []
        trainer = pl.Trainer(
            accelerator="cpu",
            max_epochs=epochs,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            callbacks=[*own, saving, *callbacks],
            **options,
        )
        loader = DataLoader(points, batch_size=2)
        path = None if continued is None else tmp_path / continued / "last.ckpt"
        trainer.fit(module, loader, loader, ckpt_path=path)
        last = torch.load(tmp_path / name / "last.ckpt", weights_only=True)
        return module, last, trainer

    return run


def average_of(weights: list[float], decay: float) -> float:
    """The formula, written out."""
    average = weights[0]
    for n, weight in enumerate(weights[1:]):
        share = min(decay, (1 + n) / (10 + n))
        average = share * average + (1 - share) * weight
    return average


@pytest.mark.parametrize(("update", "expected"), [(0, 0.1), (8, 0.5), (1000, 0.9)])
def test_the_decay_warms_up(update, expected):
    assert decay_at(update, 0.9) == pytest.approx(expected)


@pytest.mark.parametrize("decay", [0.3, 0.999])
def test_the_average_is_that_of_the_formula(fit, decay):
    module, last, _ = fit(decay=decay)
    assert len(module.after_step) == 9
    found = last["state_dict"]["layer.weight"][0, 0].item()
    assert found == pytest.approx(average_of(module.after_step, decay), abs=1e-6)
    assert found != pytest.approx(module.after_step[-1], abs=1e-4)


def test_with_accumulated_gradients_an_update_is_a_step(fit):
    module, last, _ = fit(accumulate_grad_batches=2)
    assert last[KEY]["updates"] == 4
    steps = module.after_step[::2]
    assert last["state_dict"]["layer.weight"][0, 0].item() == pytest.approx(average_of(steps, 0.9), abs=1e-6)


def test_a_checkpoint_holds_the_raw_weights_beside_the_averaged(fit):
    module, last, _ = fit()
    assert last[KEY]["raw"]["layer.weight"][0, 0].item() == module.after_step[-1]


def test_validation_sees_the_averaged_weights_and_training_the_raw(fit):
    averaged, plain = fit("a")[0], fit("b", average=False)[0]
    assert averaged.after_step == plain.after_step
    assert averaged.in_validation[-1] == pytest.approx(average_of(averaged.after_step, 0.9), abs=1e-6)
    assert plain.in_validation[-1] == plain.after_step[-1]


def test_after_the_fit_the_module_has_the_averaged_weights(fit):
    module, last, _ = fit()
    assert torch.equal(module.layer.weight, last["state_dict"]["layer.weight"])


def test_a_checkpoint_after_the_fit_is_a_plain_one(fit, tmp_path):
    module, _, trainer = fit()
    trainer.save_checkpoint(tmp_path / "after.ckpt")
    content = torch.load(tmp_path / "after.ckpt", weights_only=True)
    assert KEY not in content
    assert torch.equal(content["state_dict"]["layer.weight"], module.layer.weight)


def test_validating_after_the_fit_leaves_the_module_as_it_is(fit):
    module, _, trainer = fit()
    before = copy.deepcopy(module.state_dict())
    trainer.validate(module, DataLoader(torch.ones(2, 2)), verbose=False)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


class SaveInValidation(pl.Callback):
    """Saves while the module has the averaged weights."""

    def __init__(self, path) -> None:
        self.path = path

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        trainer.save_checkpoint(self.path)


def test_a_checkpoint_within_validation_is_the_same_as_after_it(fit, tmp_path):
    _, last, _ = fit(callbacks=[SaveInValidation(tmp_path / "within.ckpt")])
    within = torch.load(tmp_path / "within.ckpt", weights_only=True)
    for part in (lambda content: content["state_dict"], lambda content: content[KEY]["raw"]):
        assert torch.equal(part(within)["layer.weight"], part(last)["layer.weight"])


@pytest.mark.filterwarnings("ignore:.*Checkpoint directory:UserWarning", "ignore:The dirpath has changed:UserWarning")
def test_a_fit_in_two_parts_is_the_fit_in_one(fit):
    _, whole, _ = fit("whole", epochs=4)
    fit("part", epochs=2)
    _, last, _ = fit("rest", epochs=4, continued="part")
    assert last[KEY]["updates"] == whole[KEY]["updates"] == 16
    for name, value in whole["state_dict"].items():
        assert torch.equal(last["state_dict"][name], value), name
        assert torch.equal(last[KEY]["raw"][name], whole[KEY]["raw"][name]), name


@pytest.mark.filterwarnings("ignore:.*Checkpoint directory:UserWarning", "ignore:The dirpath has changed:UserWarning")
def test_continuing_without_an_average_starts_one(fit):
    plain, _, _ = fit("plain", average=False)
    module, last, _ = fit("rest", epochs=3, continued="plain")
    assert last[KEY]["updates"] == 4
    expected = average_of([plain.after_step[-1], *module.after_step[1:]], 0.9)
    assert last["state_dict"]["layer.weight"][0, 0].item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("decay", [0.0, 1.0, -0.1])
def test_a_decay_that_makes_no_average_is_an_error(decay):
    with pytest.raises(ConfigError, match=r"ema\.decay must lie between 0 and 1"):
        AveragedWeights(decay)


def test_checkpoints_without_the_raw_weights_are_refused(fit, tmp_path):
    with pytest.raises(ConfigError, match="save_weights_only"):
        fit(callbacks=[ModelCheckpoint(tmp_path / "other", monitor="loss", save_weights_only=True)])
