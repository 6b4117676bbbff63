from __future__ import annotations

import functools
import re

import numpy as np
import pytest
import pytorch_lightning as pl
import torch

from pflow.cli.fit import main
from pflow.cli.main import main as cli_main
from pflow.data.datamodule import ParticleFlowData
from pflow.errors import ConfigError
from pflow.model.api import TrainingOutput
from pflow.model.pointing import PointingNetworkConfig, PointingReconstructor
from pflow.train.module import ParticleFlow


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": 0.0}, "expected lr > 0"),
        ({"weight_decay": -1.0}, "weight_decay"),
        ({"warmup": 1.0}, "warmup"),
        ({"final_lr": 2.0}, "final_lr"),
        ({"schedule": "linear"}, "no schedule 'linear'"),
    ],
)
def test_options_that_cannot_work_are_errors(options, message):
    with pytest.raises(ConfigError, match=message):
        ParticleFlow(**options)


@pytest.mark.filterwarnings(
    "ignore:.*does not have many workers:UserWarning",
    "ignore:.*is smaller than the logging interval:UserWarning",
    "ignore:.*`__len__` defined:UserWarning",
    "ignore:.*isinstance.treespec, LeafSpec.*:FutureWarning",
)
def test_a_notebook_trains_without_the_command_line(small, tmp_path):
    data = ParticleFlowData(train=small["val"], val=small["val"], hit_energy_min=0.05)
    small_model = functools.partial(PointingReconstructor, network=PointingNetworkConfig(width=8, heads=1))
    model = ParticleFlow(reconstructor=small_model)
    trainer = pl.Trainer(accelerator="cpu", max_epochs=1, default_root_dir=tmp_path, logger=False)
    trainer.fit(model, data)
    assert np.isfinite(float(trainer.callback_metrics["val/loss"]))
    assert data.tokeniser.config.readout  # what the pointing model needs


def test_another_data_module_is_an_error():
    module = ParticleFlow()
    module.trainer = pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    with pytest.raises(ConfigError, match="needs a ParticleFlowData"):
        _ = module.data


def test_a_cosine_needs_to_know_the_number_of_steps(tiny, small, tmp_path):
    data = [f"--data.train={small['val']}", f"--data.val={small['val']}", "--data.max_tokens=4000"]
    with pytest.raises(ConfigError, match=r"set trainer\.max_steps"):
        main(["fit", *tiny, *data, f"--output={tmp_path / 'run'}"])


def test_a_budget_of_tokens_trains_with_a_number_of_steps(tiny, small, tmp_path, capsys):
    data = [f"--data.train={small['val']}", f"--data.val={small['val']}", "--data.max_tokens=4000"]
    assert main(["fit", *tiny, *data, "--trainer.max_steps=12", f"--output={tmp_path / 'run'}"]) == 0
    assert "best model" in capsys.readouterr().out


def test_a_loss_that_is_not_finite_stops_the_training_and_names_the_events(small, tmp_path, tiny, monkeypatch, capsys):
    def step(self, batch):
        losses = {name: torch.zeros((), requires_grad=True) for name in ("energy", "total")}
        if step.calls == 1:
            losses = {name: loss + float("nan") for name, loss in losses.items()}
        step.calls += 1
        return TrainingOutput(losses, {}, batch.target)

    step.calls = 0
    monkeypatch.setattr("pflow.model.translation.TranslationReconstructor.training_step", step)
    data = [f"--data.train={small['val']}", f"--data.val={small['val']}", f"--output={tmp_path / 'run'}"]
    assert cli_main(["fit", *tiny, *data, "--trainer.num_sanity_val_steps=0"]) == 1
    said = capsys.readouterr().err
    assert re.search(
        r"not a finite number \(energy\) in the batch of .*gamma1_val_small.root, entries \d+(, \d+){7};", said
    )
    assert step.calls == 2
    assert not list((tmp_path / "run").glob("*.ckpt"))


def test_a_training_in_half_precision_alone_is_refused_by_name(tiny, small, tmp_path):
    data = [f"--data.train={small['val']}", f"--data.val={small['val']}", f"--output={tmp_path / 'run'}"]
    with pytest.raises(ConfigError, match=r"trainer\.precision: with bf16-true"):
        main(["fit", *tiny, *data, "--trainer.precision=bf16-true"])
