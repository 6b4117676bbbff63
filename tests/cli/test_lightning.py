"""What Lightning's documentation promises of a module, a data module and a command line holds for pflow's."""

import re
import shutil
from functools import partial
from pathlib import Path

import awkward as ak
import numpy as np
import pytest
import pytorch_lightning as pl
import torch
import yaml
from pytorch_lightning.callbacks import BaseFinetuning, BasePredictionWriter, StochasticWeightAveraging
from pytorch_lightning.tuner import Tuner

import pflow
from pflow.cli.main import main
from pflow.data.datamodule import ParticleFlowData
from pflow.errors import ConfigError, InputError
from pflow.model.api import DecodingConfig
from pflow.model.pointing import PointingReconstructor
from pflow.model.translation import TranslationNetworkConfig, TranslationReconstructor
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
    return pl.Trainer(accelerator="cpu", max_epochs=1, **QUIET)


@pytest.fixture
def samples(small):
    return ParticleFlowData(val=small["val"], test=small["val"], predict=small["val"], chunk_size=32, batch_size=20)


@pytest.fixture
def tiny_module():
    """Makes a module of a class with a tiny network."""
    network = TranslationNetworkConfig(width=8, heads=1, feedforward=8, encoder_layers=1, decoder_layers=1)
    made = partial(TranslationReconstructor, network=network, decoding=DecodingConfig(max_particles=3))
    return lambda kind=ParticleFlow, **options: kind(reconstructor=made, **options)


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
    for header, message in ((None, "not a checkpoint of pflow"), ("{", "the header is not JSON")):
        torch.save({**content, "pflow": header}, tmp_path / "other.ckpt")
        with pytest.raises(InputError, match=message):
            ParticleFlow.load_from_checkpoint(tmp_path / "other.ckpt")


def test_validate_and_test_give_what_the_training_logged(run, trainer, samples, small):
    """By the module that was loaded, by one that the trainer loads, and by one that begins with the weights."""
    loaded, begun = ParticleFlow.load_from_checkpoint(best(run)), ParticleFlow(start_from=best(run))
    (validated,) = trainer.validate(loaded, samples, verbose=False)
    (tested,) = trainer.test(ParticleFlow(), samples, ckpt_path=best(run), weights_only=True, verbose=False)
    (again,) = trainer.test(begun, ParticleFlowData(test=small["val"]), verbose=False)
    logged = np.genfromtxt(run / "logs" / "version_0" / "metrics.csv", delimiter=",", names=True)
    of_best = np.nanmin(logged["valwrong_energy"])
    assert validated["val/wrong_energy"] == pytest.approx(of_best, rel=1e-5)
    assert {name.replace("val/", "test/"): value for name, value in validated.items()} == pytest.approx(tested)
    assert tested == pytest.approx(again, rel=1e-4)  # with other batches


def test_predict_and_forward_give_the_particles_of_a_reconstruction(run, trainer, samples, small):
    module = ParticleFlow.load_from_checkpoint(best(run))
    predictions = trainer.predict(module, samples)
    expected = pflow.reconstruct(small["val"], best(run))
    particles = ak.concatenate([prediction.particles for prediction in predictions])
    assert len(predictions) == 3
    assert ak.all(particles.pdg == expected.particles.pdg)
    assert ak.all(abs(particles.energy / expected.particles.energy - 1) < 1e-4)
    assert np.concatenate([prediction.event for prediction in predictions]).tolist() == expected.event.tolist()
    batch = next(iter(samples.predict_dataloader())).batch
    assert batch.target is None
    assert int(module.eval()(batch).mask.sum()) == ak.count(predictions[0].particles.pdg)
    with pytest.raises(TypeError, match=r"expected a Batch, found Events; events go through pflow\.reconstruct"):
        module(pflow.read_events(small["val"], entry_stop=1))


def test_predict_is_calibrated_as_a_reconstruction(trainer, sample_dir):
    sample = str(sample_dir / "gammasep_test_small.root")
    (prediction, *_) = trainer.predict(ParticleFlow(start_from="ild-g4-photon"), ParticleFlowData(predict=sample))
    expected = pflow.reconstruct(sample, "ild-g4-photon", device="cpu").particles[: len(prediction.event)]
    assert ak.all(abs(prediction.particles.energy / expected.energy - 1) < 1e-4)
    assert ak.all(abs(prediction.particles.covariance / expected.covariance - 1) < 1e-2)
    assert ak.any(prediction.particles.covariance[..., 9] > 0)


def test_a_module_without_weights_is_not_evaluated(trainer, samples):
    with pytest.raises(
        ConfigError, match=r"there is no tokeniser: name a trained model.*: data\.use\(module\.tokeniser\)"
    ):
        trainer.validate(ParticleFlow(), samples)
    with pytest.raises(ConfigError, match="there is no model"):
        ParticleFlow()(None)
    with pytest.raises(ConfigError, match=r"no test files are given: give --data\.test"):
        trainer.test(ParticleFlow(), ParticleFlowData())


def test_a_training_is_resumed_by_a_trainer_alone(run, small, tiny):
    """With `ckpt_path`, as in Lightning's documentation, and the model's tokeniser."""
    data = ParticleFlowData(train=small["val"], val=small["val"], batch_size=20, chunk_size=32, hit_energy_min=0.05)
    module = ParticleFlow(start_from=best(run))
    assert module.began_with["step"] > 0
    trainer = pl.Trainer(accelerator="cpu", max_epochs=3, **QUIET)
    trainer.fit(module, data, ckpt_path=run / "last.ckpt", weights_only=True)
    assert trainer.global_step == 9
    assert module.tokeniser == pflow.load_model(best(run)).tokeniser


def test_each_verb_of_the_command_line_evaluates_a_model(run, small, capsys, monkeypatch):
    """Named as pflow does, by --checkpoint, and as Lightning does."""
    quiet = ["--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"]
    for verb, split, option in (("validate", "val", "--checkpoint"), ("test", "test", "--ckpt_path")):
        assert main([verb, option, best(run), *quiet, f"--data.{split}={small['val']}"]) == 0
        shown = capsys.readouterr()
        assert f"{split}/wrong_energy" in shown.out
        assert f"{small['val']}: the model was trained on this file" in shown.err
    assert main(["predict", "--ckpt_path", best(run), *quiet, f"--data.predict={small['val']}"]) == 0
    assert "nothing is kept of what is predicted: pflow reconstruct writes" in capsys.readouterr().err
    monkeypatch.setattr(BasePredictionWriter, "write_on_batch_end", lambda *_: None)
    words = ["--trainer.callbacks=BasePredictionWriter", "--trainer.callbacks.write_interval=batch"]
    assert main(["predict", "--ckpt_path", best(run), *quiet, *words, f"--data.predict={small['val']}"]) == 0
    assert "batch indices" not in capsys.readouterr().err
    assert main(["test", "--checkpoint", best(run), "--start-from=general", f"--data.test={small['val']}"]) == 2
    assert "--checkpoint and --start-from both name the model: give one" in capsys.readouterr().err
    for option in ("--checkpoint", "--ckpt_path"):
        words = [option, best(run), *quiet, f"--data.test={small['val']}", "--data.hit_energy_min=0"]
        assert main(["test", *words]) == 2
        assert "data.hit_energy_min is 0.0, but the weights have 0.05" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("verb", "split"), [("fit", "train"), ("validate", "val"), ("test", "test"), ("predict", "predict")]
)
def test_a_verb_that_would_do_nothing_is_refused(verb, split, capsys):
    assert main([verb, "--start-from=ild-g4-photon", f"--trainer.limit-{split}-batches=0"]) == 2
    said = f"trainer.limit_{split}_batches is 0, so pflow {verb} would do nothing: give a number of batches"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["fit", "validate", "test", "predict"])
def test_each_verb_has_help_and_names_the_nearest_option(verb, capsys):
    assert main([verb, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: pflow {verb} [options]\n")
    assert main([verb, "--chekpoint=x"]) == 2
    said = f"pflow {verb}: error: unrecognized arguments: --chekpoint=x (nearest matches: --checkpoint"
    assert capsys.readouterr().err.startswith(said)


def test_a_network_has_help_by_its_short_name(capsys):
    assert main(["fit", "--model.reconstructor.help", "translation"]) == 0
    assert "TranslationReconstructor" in capsys.readouterr().out


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
      init_args: {dirpath: SAVE, filename: "{step}", every_n_train_steps: 3, save_top_k: -1}
model_checkpoint: {monitor: val/loss, save_top_k: 2, filename: "best-{epoch}"}
early_stopping: {patience: 1, min_delta: 100.0}
"""


def test_loggers_and_callbacks_by_yaml_and_an_early_stop_is_said(tiny, data, tmp_path, capsys):
    """Early stopping goes by the quantity of the best model."""
    (tmp_path / "mine.yaml").write_text(RECORDED.replace("SAVE", str(tmp_path)))
    words = ["--config", str(tmp_path / "mine.yaml"), *tiny, *data, "--trainer.max_epochs=9"]
    assert main(["fit", *words]) == 0
    shown = capsys.readouterr().out
    said = r"stopped early, after epoch 2 of 9: Monitored metric val/loss did not improve in the last 1 records"
    assert re.search(said, shown)
    assert "best model: " in shown
    assert f"training.png is not drawn: it shows the CSV logs in {tmp_path / 'run'}/logs, which pflow writes" in shown
    assert f"and a CSVLogger with save_dir {tmp_path / 'run'} and name logs\n" in shown
    metrics = (tmp_path / "mine" / "version_0" / "metrics.csv").read_text()
    assert "lr-AdamW/pg1" in metrics
    assert metrics.count("\n") > 6  # a row for each step's rate
    assert not (tmp_path / "run" / "logs").exists()
    assert len(list((tmp_path / "run").glob("best-*.ckpt"))) == 2
    assert (tmp_path / "run" / "last.ckpt").is_file()
    assert {path.name for path in tmp_path.glob("*.ckpt")} == {"step=3.ckpt", "step=6.ckpt"}


def test_print_config_gives_a_configuration_that_gives_itself(tmp_path, capsys):
    assert main(["fit", "--config=gamma1", "--model.lr=0.5", "--print_config"]) == 0
    printed = capsys.readouterr().out
    content = yaml.safe_load(printed)
    assert (content["model"]["lr"], content["early_stopping"]["patience"]) == (0.5, 20)
    (tmp_path / "printed.yaml").write_text(printed)
    assert main(["fit", "--config", str(tmp_path / "printed.yaml"), "--print-config"]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == content
    for words in (["--checkpoint", "null", "-o", "translation"], ["--output=translation"]):  # no architecture there
        assert main(["fit", *words, "--print-config"]) == 0
        assert yaml.safe_load(capsys.readouterr().out)["output"] == "translation"


@pytest.mark.parametrize("schedule", ["plateau", "cosine"])
def test_a_subclass_has_an_optimiser_and_hyperparameters_of_its_own(small, tiny_module, trainer, tmp_path, schedule):
    """Its schedule is left alone, and `save_hyperparameters` keeps plain data that `load_model` reads."""

    class Mine(ParticleFlow):
        def __init__(self, width: int = 2, **options: object) -> None:
            super().__init__(**options)
            self.save_hyperparameters()

        def configure_optimizers(self):
            adam = torch.optim.Adam(self.parameters(), lr=1e-4)
            if schedule == "plateau":
                reduce = torch.optim.lr_scheduler.ReduceLROnPlateau(adam)
                return {"optimizer": adam, "lr_scheduler": {"scheduler": reduce, "monitor": "val/loss"}}
            return [adam], [torch.optim.lr_scheduler.CosineAnnealingLR(adam, T_max=2)]

    data = ParticleFlowData(train=small["val"], val=small["val"], batch_size=8, chunk_size=32)
    trainer.fit(tiny_module(Mine, width=3), data)
    rate = trainer.optimizers[0].param_groups[0]["lr"]
    assert rate == pytest.approx(5e-5 if schedule == "cosine" else 1e-4)
    trainer.save_checkpoint(tmp_path / "mine.ckpt")
    loaded = Mine.load_from_checkpoint(tmp_path / "mine.ckpt", lr=0.5)
    assert (loaded.hparams.width, loaded.lr, loaded.hparams.lr) == (3, 0.5, 0.5)
    assert pflow.load_model(tmp_path / "mine.ckpt").config["provenance"]["train"] == ["gamma1_val_small.root"]


def test_the_tuner_finds_a_rate_and_the_training_takes_it(small, tiny_module, tmp_path):
    trainer = pl.Trainer(accelerator="cpu", max_epochs=3, limit_val_batches=0, default_root_dir=tmp_path, **QUIET)
    data = ParticleFlowData(train=small["val"], val=small["val"], batch_size=8, chunk_size=32)
    module = tiny_module()
    Tuner(trainer).lr_find(module, data, num_training=20, early_stop_threshold=None)
    assert module.lr != 1e-3
    trainer.fit(module, data)
    assert trainer.optimizers[0].param_groups[0]["initial_lr"] == module.lr
    trainer.save_checkpoint(tmp_path / "tuned.ckpt")
    assert pflow.load_model(tmp_path / "tuned.ckpt").config["provenance"]["parts"] == 1


class Batches(pl.Callback):
    """Notes the entries of each training batch."""

    def __init__(self) -> None:
        self.entries: list[list[int]] = []

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.entries.append(batch.entry.tolist())


class Foreign(pl.LightningModule):
    """Not of pflow: has no tokeniser and knows nothing of epochs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, labelled, batch_idx):
        return self.layer(labelled.batch.target.energy.mean().reshape(1, 1)).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)


@pytest.mark.filterwarnings("ignore:You passed in a `val_dataloader`", "ignore:You requested to overfit")
@pytest.mark.parametrize("overfit", [0, 2])
def test_each_epoch_is_shuffled_for_any_module_but_not_with_overfit_batches(small, tiny_module, overfit):
    batches, data = Batches(), ParticleFlowData(train=Path(small["val"]), val=Path(small["val"]), batch_size=8)
    options = {**QUIET, "overfit_batches": overfit, "callbacks": [batches], "max_epochs": 2, "limit_val_batches": 0}
    pl.Trainer(accelerator="cpu", **options).fit(tiny_module() if overfit else Foreign(), data)
    half = len(batches.entries) // 2
    assert half == (overfit or 7)
    assert (batches.entries[:half] == batches.entries[half:]) == bool(overfit)


def test_a_reconstructor_that_is_given_is_used_with_the_weights_or_refused(run):
    network = TranslationNetworkConfig(width=8, heads=1, feedforward=8, encoder_layers=1, decoder_layers=1)
    mine = partial(TranslationReconstructor, network=network, decoding=DecodingConfig(max_particles=9))
    assert ParticleFlow.load_from_checkpoint(best(run), reconstructor=mine).reconstructor.decoding.max_particles == 9
    other = partial(TranslationReconstructor, network=TranslationNetworkConfig(width=16, heads=1))
    with pytest.raises(ConfigError, match="width is 16, but the weights have 8"):
        ParticleFlow.load_from_checkpoint(best(run), reconstructor=other)
    with pytest.raises(ConfigError, match=r"class_path is pflow\.model\.pointing\.PointingR.*, but the weights"):
        ParticleFlow.load_from_checkpoint(best(run), reconstructor=partial(PointingReconstructor))
    with pytest.raises(ConfigError, match="must be a class or a partial of one, found 'pointing'"):
        ParticleFlow(reconstructor="pointing")


def test_what_a_trainer_saves_says_what_the_weights_were_trained_on(run, small, trainer, sample_dir, tmp_path):
    """After a test of other data, of weights that are only evaluated with their calibration, and of a fine-tuning."""

    def saved() -> pflow.checkpoint.TrainedModel:
        other.save_checkpoint(tmp_path / "saved.ckpt")
        return pflow.load_model(tmp_path / "saved.ckpt")

    module, other = ParticleFlow.load_from_checkpoint(best(run)), pl.Trainer(accelerator="cpu", **QUIET)
    other.validate(module, ParticleFlowData(val=small["test"]), verbose=False)
    assert saved().config["provenance"] == pflow.load_model(best(run)).config["provenance"]
    trainer.fit(module, ParticleFlowData(train=small["train"], val=small["val"], batch_size=64))
    other.test(module, ParticleFlowData(test=small["test"]), verbose=False)
    model = saved()
    assert (model.config["provenance"]["train"], model.config["provenance"]["step"]) == (["gamma1_train_small.root"], 8)
    assert model.tokeniser.sample.max_energy > pflow.load_model(best(run)).tokeniser.sample.max_energy
    pairs = ParticleFlowData(test=str(sample_dir / "gammasep_test_small.root"))
    other.test(ParticleFlow(start_from="ild-g4-photon"), pairs, verbose=False)
    calibration = pflow.load_model("ild-g4-photon").calibration
    assert saved().calibration == ParticleFlow.load_from_checkpoint(tmp_path / "saved.ckpt").calibration == calibration
    other.test(module, ParticleFlowData(test=small["test"]), ckpt_path=best(run), verbose=False)
    assert saved().config["provenance"] == pflow.load_model(best(run)).config["provenance"]


def test_finetuning_and_its_empty_groups_of_parameters(run, small, trainer):
    class Biases(BaseFinetuning):
        def freeze_before_training(self, module):
            for parameter in module.parameters():
                parameter.requires_grad_(parameter.ndim < 2)

        def finetune_function(self, module, epoch, optimizer):
            pass

    module = ParticleFlow.load_from_checkpoint(best(run))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    trainer.callbacks.append(Biases())
    trainer.fit(module, ParticleFlowData(train=small["val"], val=small["val"], batch_size=25))
    changed = {value.ndim for name, value in module.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {1}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda data: ParticleFlowData(batchsize=3), r"unknown field 'batchsize' \(nearest matches: batch_size"),
        (lambda data: data.setup("val"), "no stage 'val': expected one of fit, validate, test, predict"),
        (lambda data: pl.Trainer(accelerator="cpu", max_epochs=1, **QUIET).fit(ParticleFlow()), "as the datamodule"),
        (
            lambda data: pl.Trainer(accelerator="cpu", precision="bf16-true", **QUIET).validate(ParticleFlow(), data),
            "with bf16-true positions .* would not be in the single precision",
        ),
        (
            lambda data: pl.Trainer(accelerator="cpu", max_epochs=-1, **QUIET).fit(ParticleFlow(), data),
            "number of steps: set trainer.max_steps, or max_epochs and no data.max_tokens",
        ),
        (
            lambda data: pl.Trainer(
                accelerator="cpu", max_epochs=1, callbacks=[StochasticWeightAveraging(1e-2)], **QUIET
            ).fit(ParticleFlow(), data),
            "StochasticWeightAveraging copies a model before it is built",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:You defined a `validation_step`")
def test_a_wrong_argument_in_python_is_named(small, call, message):
    with pytest.raises(ConfigError, match=message):
        call(ParticleFlowData(train=small["val"], val=small["val"]))


def test_a_run_is_resumed_and_evaluated_by_the_words_best_and_last(run, tmp_path, capsys):
    """The configuration of the resumed run begins a new one, with or without logs."""
    folder = Path(shutil.copytree(run, tmp_path / "run"))
    words = ["--config", str(folder / "config.yaml"), f"--output={folder}", "--trainer.max_epochs=3"]
    assert main(["fit", *words, "--ckpt_path=last"]) == 0
    assert f"resume {folder / 'last.ckpt'}: epoch 2, step 6" in capsys.readouterr().out
    assert main(["validate", *words, "--ckpt_path=best", "--trainer.limit_val_batches=1"]) == 0
    assert "val/loss" in capsys.readouterr().out
    words = ["--config", str(folder / "config.yaml"), f"--output={tmp_path / 'new'}", "--trainer.logger=false"]
    assert main(["fit", *words, "--ckpt_path=null", "--trainer.max_steps=1"]) == 0
    assert "first scales and vocabulary" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"last.ckpt", "config.yaml"}


def test_callbacks_find_a_logger_and_write_to_the_folder_of_the_run(tiny, data, tmp_path):
    """Lightning's progress bar and its checkpoint after an error may be among them."""
    names = ("DeviceStatsMonitor", "TQDMProgressBar", "OnExceptionCheckpoint", "ModelCheckpoint")
    added = [f"--trainer.callbacks+={name}" for name in names]
    added.insert(3, f"--trainer.callbacks.dirpath={tmp_path}")
    words = [*added, "--trainer.callbacks.every_n_train_steps=2", "--trainer.max_steps=2"]
    words += ["--trainer.profiler=SimpleProfiler", "--trainer.profiler.filename=t"]
    words.append("--trainer.enable_progress_bar=true")
    assert main(["fit", *tiny, *data, *words]) == 0
    assert (tmp_path / "run" / "checkpoints" / "epoch=0-step=2.ckpt").is_file()
    assert (tmp_path / "run" / "fit-t.txt").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--trainer.enable_checkpointing=false"], "enable_checkpointing is False, but pflow fit writes checkpoints"),
        (["--trainer.barebones=true"], "barebones is True, but pflow fit writes checkpoints"),
        (["--trainer.accelerator=tpu"], "torch_xla"),
        (["--seed-everything=true"], "error: seed_everything is True: give a number, with which the training is the"),
        (["--trainer.logger=WandbLogger"], "error: 'pytorch_lightning.loggers.WandbLogger': Requirement 'wandb"),
        (
            ["--trainer.callbacks=Timer", "--trainer.callbacks.duration=00:12:00:00"],
            "cannot hold <Interval.step: 'step'>, the default of an option: give it as text, as --trainer.callbacks",
        ),
        (["--trainer.callbacks=EarlyStopping", "--trainer.callbacks.monitor=x"], "conditioned on metric `x`"),
    ],
)
def test_what_lightning_refuses_is_no_unexpected_error(tiny, data, capsys, words, message):
    assert main(["fit", *tiny, *data, "--trainer.limit_train_batches=1", *words]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "please report" not in said
