"""What Lightning's documentation promises of a module, a data module and a command line holds for pflow's."""

import re
import shutil
from pathlib import Path

import awkward as ak
import numpy as np
import pytest
import pytorch_lightning as pl
import torch
import yaml

import pflow
from pflow.cli.main import main
from pflow.data.datamodule import ParticleFlowData
from pflow.errors import ConfigError, InputError
from pflow.train.module import ParticleFlow

pytestmark = [
    pytest.mark.usefixtures("no_figures"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*isinstance.treespec, LeafSpec.*"),
    pytest.mark.filterwarnings("ignore:.*callbacks used to create the checkpoint need to be provided"),
    pytest.mark.filterwarnings("ignore:.*`__len__` defined", "ignore:.*checkpoint was not created with Weight"),
]
QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}


@pytest.fixture
def trainer():
    return pl.Trainer(accelerator="cpu", **QUIET)


@pytest.fixture
def data(small):
    return ParticleFlowData(val=small["val"], test=small["val"], predict=small["val"], chunk_size=32, batch_size=8)


def best(run) -> str:
    return str(run / "best.ckpt")


def test_load_from_checkpoint_needs_no_trainer_and_runs_no_code(run, tmp_path, payload):
    module = ParticleFlow.load_from_checkpoint(best(run))
    theirs = pflow.load_model(best(run)).reconstructor.state_dict()
    assert all(torch.equal(weight, theirs[name]) for name, weight in module.reconstructor.state_dict().items())
    assert module.hparams.lr == module.lr == 1e-3
    content = torch.load(best(run), weights_only=True)
    torch.save({**content, "callbacks": payload[0]}, tmp_path / "bad.ckpt")
    with pytest.raises(Exception, match="Weights only load failed"):
        ParticleFlow.load_from_checkpoint(tmp_path / "bad.ckpt")
    assert not payload[1].exists()
    del content["pflow"]
    torch.save(content, tmp_path / "other.ckpt")
    with pytest.raises(InputError, match="not a checkpoint of pflow"):
        ParticleFlow.load_from_checkpoint(tmp_path / "other.ckpt")


def test_validate_and_test_give_what_the_training_logged(run, trainer, data, small):
    """By the module that was loaded, by one that the trainer loads, and by one that begins with the weights."""
    loaded, begun = ParticleFlow.load_from_checkpoint(best(run)), ParticleFlow(start_from=best(run))
    (validated,) = trainer.validate(loaded, data, verbose=False)
    (tested,) = trainer.test(ParticleFlow(), data, ckpt_path=best(run), weights_only=True, verbose=False)
    (again,) = trainer.test(begun, ParticleFlowData(test=small["val"]), verbose=False)
    logged = np.genfromtxt(run / "logs" / "version_0" / "metrics.csv", delimiter=",", names=True)
    of_best = np.nanmin(logged["valwrong_energy"])
    assert validated["val/wrong_energy"] == pytest.approx(of_best, rel=1e-5)
    assert {name.replace("val/", "test/"): value for name, value in validated.items()} == pytest.approx(tested)
    assert tested == pytest.approx(again, rel=1e-4)  # with other batches


def test_predict_and_forward_give_the_particles_of_a_reconstruction(run, trainer, data, small):
    module = ParticleFlow.load_from_checkpoint(best(run))
    predictions = trainer.predict(module, data)
    expected = pflow.reconstruct(small["val"], best(run))
    particles = ak.concatenate([prediction.particles for prediction in predictions])
    assert len(predictions) == 7
    assert ak.all(particles.pdg == expected.particles.pdg)
    assert ak.all(abs(particles.energy / expected.particles.energy - 1) < 1e-4)
    assert np.concatenate([prediction.event for prediction in predictions]).tolist() == expected.event.tolist()
    batch = next(iter(data.predict_dataloader())).batch
    assert batch.target is None
    assert int(module.eval()(batch).mask.sum()) == ak.count(predictions[0].particles.pdg)


def test_predict_is_calibrated_as_a_reconstruction(trainer, sample_dir):
    sample = str(sample_dir / "gammasep_test_small.root")
    (prediction, *_) = trainer.predict(ParticleFlow(start_from="ild-g4-photon"), ParticleFlowData(predict=sample))
    expected = pflow.reconstruct(sample, "ild-g4-photon", device="cpu").particles[: len(prediction.event)]
    assert ak.all(abs(prediction.particles.energy / expected.energy - 1) < 1e-4)
    assert ak.all(abs(prediction.particles.covariance / expected.covariance - 1) < 1e-2)
    assert ak.any(prediction.particles.covariance[..., 9] > 0)


def test_a_module_without_weights_is_not_evaluated(trainer, data):
    with pytest.raises(ConfigError, match="there is no tokeniser: name a trained model"):
        trainer.validate(ParticleFlow(), data)
    with pytest.raises(ConfigError, match="there is no model"):
        ParticleFlow()(None)
    with pytest.raises(ConfigError, match=r"no test files are given: set data\.test"):
        trainer.test(ParticleFlow(), ParticleFlowData())


def test_a_training_is_resumed_by_a_trainer_alone(run, small, tiny):
    """With `ckpt_path`, as in Lightning's documentation, and the model's tokeniser."""
    data = ParticleFlowData(train=small["val"], val=small["val"], batch_size=8, chunk_size=32, hit_energy_min=0.05)
    module = ParticleFlow(start_from=best(run))
    assert module.began_with["step"] > 0
    trainer = pl.Trainer(accelerator="cpu", max_epochs=3, **QUIET)
    trainer.fit(module, data, ckpt_path=run / "last.ckpt", weights_only=True)
    assert trainer.global_step == 21
    assert module.tokeniser == pflow.load_model(best(run)).tokeniser


def test_each_verb_of_the_command_line_evaluates_a_model(run, small, capsys):
    """Named as pflow does, by --checkpoint, and as Lightning does."""
    quiet = ["--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"]
    for verb, split, option in (("validate", "val", "--checkpoint"), ("test", "test", "--ckpt_path")):
        assert main([verb, option, best(run), *quiet, f"--data.{split}={small['val']}"]) == 0
        assert f"{split}/wrong_energy" in capsys.readouterr().out
    assert main(["predict", "--ckpt_path", best(run), *quiet, f"--data.predict={small['val']}"]) == 0
    for option in ("--checkpoint", "--ckpt_path"):
        words = [option, best(run), *quiet, f"--data.test={small['val']}", "--data.hit_energy_min=0"]
        assert main(["test", *words]) == 1
        assert "data.hit_energy_min is 0.0, but the weights have 0.05" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["fit", "validate", "test", "predict"])
def test_each_verb_has_help_and_names_the_nearest_option(verb, capsys):
    assert main([verb, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: pflow {verb} [options]\n")
    assert main([verb, "--chekpoint=x"]) == 2
    said = f"pflow {verb}: error: unrecognized arguments: --chekpoint=x (nearest matches: --checkpoint"
    assert capsys.readouterr().err.startswith(said)


def test_an_error_of_a_configuration_does_not_blame_the_command_line(tmp_path, capsys):
    (tmp_path / "a.yaml").write_text(
        "model: {reconstructor: {class_path: pflow.model.translation.TranslationReconstructor, "
        "init_args: {network: {special: kind}}}}"
    )
    for words, given in (
        (["--model.reconstructor=pointing"], False),
        (["--model.reconstructor.network.special=1"], True),
    ):
        configuration = [] if given else ["--config", str(tmp_path / "a.yaml")]
        assert main(["fit", *configuration, *words]) == 2
        assert ("not on the command line; a configuration" in capsys.readouterr().err) != given


def test_the_configuration_of_a_run_is_one_for_every_verb(run, capsys):
    words = ["--config", str(run / "config.yaml"), "--trainer.limit_val_batches=1", "--ckpt_path", best(run)]
    assert main(["validate", *words]) == 0
    assert "val/loss" in capsys.readouterr().out


RECORDED = """
trainer:
  log_every_n_steps: 1
  logger:
    class_path: CSVLogger
    init_args: {save_dir: SAVE, name: mine}
  callbacks:
    - class_path: LearningRateMonitor
      init_args: {logging_interval: step}
    - class_path: ModelCheckpoint
      init_args: {dirpath: SAVE, filename: "{step}", every_n_train_steps: 5, save_top_k: -1}
model_checkpoint: {monitor: val/loss, save_top_k: 2, filename: "best-{epoch}"}
early_stopping: {patience: 1, min_delta: 100.0}
"""


def test_loggers_and_callbacks_by_yaml_and_an_early_stop_is_said(tiny, small, tmp_path, capsys):
    """Early stopping goes by the quantity of the best model."""
    (tmp_path / "mine.yaml").write_text(RECORDED.replace("SAVE", str(tmp_path)))
    data = [f"--data.train={small['val']}", f"--data.val={small['val']}", f"--output={tmp_path / 'run'}"]
    words = ["--config", str(tmp_path / "mine.yaml"), *tiny, *data, "--trainer.max_epochs=9"]
    assert main(["fit", *words]) == 0
    shown = capsys.readouterr().out
    said = r"stopped early, after epoch 2 of 9: Monitored metric val/loss did not improve in the last 1 records"
    assert re.search(said, shown)
    assert "best model: " in shown
    metrics = (tmp_path / "mine" / "version_0" / "metrics.csv").read_text()
    assert "lr-AdamW/pg1" in metrics
    assert metrics.count("\n") > 14  # a row for each step's rate
    assert not (tmp_path / "run" / "logs").exists()
    assert len(list((tmp_path / "run").glob("best-*.ckpt"))) == 2
    assert (tmp_path / "run" / "last.ckpt").is_file()
    assert {path.name for path in tmp_path.glob("*.ckpt")} == {"step=5.ckpt", "step=10.ckpt"}


def test_print_config_gives_a_configuration_that_gives_itself(tmp_path, capsys):
    assert main(["fit", "--config=gamma1", "--model.lr=0.5", "--print_config"]) == 0
    printed = capsys.readouterr().out
    content = yaml.safe_load(printed)
    assert (content["model"]["lr"], content["early_stopping"]["patience"]) == (0.5, 20)
    (tmp_path / "printed.yaml").write_text(printed)
    assert main(["fit", "--config", str(tmp_path / "printed.yaml"), "--print-config"]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == content


def test_a_resume_that_fails_changes_nothing(run, sample_dir, tmp_path, capsys):
    """By files of another detector, and by a loss that is not finite, before the first checkpoint."""
    folder = Path(shutil.copytree(run, tmp_path / "run"))
    before = (folder / "config.yaml").read_bytes()
    other = sample_dir / "cld_multi_train_small.root"
    assert main(["fit", f"--checkpoint={folder}", f"--data.train={other}", "--trainer.max_epochs=3"]) == 1
    assert "reads detector 'ild_g4' alone" in capsys.readouterr().err
    assert main(["fit", f"--checkpoint={folder}", "--model.lr=1e30", "--trainer.max_epochs=3"]) == 1
    assert "not a finite number" in capsys.readouterr().err
    assert (folder / "config.yaml").read_bytes() == before
    assert main(["fit", f"--checkpoint={folder}", "--trainer.max_epochs=3"]) == 0
    assert yaml.safe_load((folder / "config.yaml").read_text())["trainer"]["max_epochs"] == 3
