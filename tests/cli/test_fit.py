import csv
import dataclasses
import os
import re
import shutil
import signal
import warnings
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
import yaml

from pflow.checkpoint import load_model, read_checkpoint, write_weights
from pflow.cli import fit
from pflow.cli.main import main as main_with_exit_code
from pflow.errors import ConfigError, InputError, PflowError
from pflow.io.atomic import lock
from pflow.io.flat import write_events
from pflow.io.root import file_uuid
from pflow.model.pointing.config import PointingNetworkConfig
from pflow.train.callbacks import EpochLine
from pflow.train.module import MONITOR, ParticleFlow

pytestmark = pytest.mark.usefixtures("no_figures")

NETWORK = "--model.reconstructor.network"
POINTING = "pflow.model.pointing.PointingReconstructor"
LIMITS = [f"--trainer.limit_{split}_batches=2" for split in ("train", "val")]
NOTHING_LEFT = r"nothing left to train: .*last\.ckpt has 2 epochs, .*max_epochs is 2; .*raise --trainer\.max-epochs"


def logged(folder, key: str, version: int = 0) -> list[float]:
    with open(folder / "logs" / f"version_{version}" / "metrics.csv", newline="") as file:
        return [float(row[key]) for row in csv.DictReader(file) if row.get(key)]


def network(config) -> dict:
    """Options of the network in a configuration, or in a header of a checkpoint."""
    model = config["model"]
    return model.get("reconstructor", model)["init_args"]["network"]


def test_a_fit_leaves_its_configuration_logs_and_models_to_use(run, small):
    """Logs for TensorBoard, and as CSV each loss by name, and errors that a physicist understands."""
    assert {"best.ckpt", "last.ckpt", "config.yaml", "logs"} <= set(os.listdir(run))
    assert network(yaml.safe_load((run / "config.yaml").read_text()))["width"] == 8
    (events,) = (run / "logs" / "version_0").glob("events.out.tfevents.*")
    assert events.stat().st_size > 0
    for split in ("train", "val"):
        total, *parts = (logged(run, f"{split}/{name}") for name in ("loss", "charge", "pdg", "energy", "direction"))
        np.testing.assert_allclose(total, np.sum(parts, axis=0), rtol=1e-4)
    assert len(total) == 2
    assert total[1] < total[0]
    assert all(value > 0 for value in logged(run, "val/wrong_energy"))
    for name in ("best.ckpt", "last.ckpt"):
        torch.load(run / name, weights_only=True)  # weights and plain data only
    header = read_checkpoint(run / "best.ckpt").header
    assert header.provenance["train"] == ["gamma1_val_small.root"]
    assert header.provenance["uuids"] == [file_uuid(small["val"])]
    assert (header.provenance["n_events"], header.provenance["ema_decay"]) == (50, None)
    assert network(header.to_dict())["width"] == 8
    model = load_model(run / "best.ckpt")
    assert not model.reconstructor.training
    assert model.tokeniser.config.hit_energy_min == 0.05
    assert model.reconstructor.decoding.max_particles == 3


EVERY = "--trainer.check-val-every-n-epoch"


@pytest.mark.parametrize(
    ("validations", "best", "last"),
    [
        ([f"{EVERY}=3", "--trainer.max-epochs=1"], None, 3),
        ([f"{EVERY}=null", "--trainer.val-check-interval=20", "--trainer.max-steps=4"], None, 4),
        (["--trainer.val-check-interval=0.7", "--trainer.max-epochs=1"], 2, 3),
    ],
)
def test_the_last_step_is_kept_however_often_is_validated(tiny, data, tmp_path, capsys, validations, best, last):
    assert fit.main("fit", [*tiny, *data, *validations]) == 0
    folder, shown = tmp_path / "run", capsys.readouterr().out
    assert read_checkpoint(folder / "last.ckpt").header.provenance["step"] == last
    assert (folder / "best.ckpt").exists() is bool(best)
    if best:
        assert read_checkpoint(folder / "best.ckpt").header.provenance["step"] == best
        assert f"not validated, and maybe better: the last 1 of 3 steps, in {folder / 'last.ckpt'}\n" in shown
    else:
        said = f"no best model by val/wrong_energy, without a validation; the last one is {folder / 'last.ckpt'}"
        assert shown.splitlines()[-1] == said
        assert "not validated" not in shown


def test_a_training_of_which_nothing_was_saved_says_so(tiny, data, monkeypatch):
    monkeypatch.setattr(fit.EpochLine, "on_train_start", lambda _, trainer, *__: setattr(trainer, "should_stop", True))
    with pytest.raises(ConfigError, match="nothing was saved, as the training ended after 0 steps"):
        fit.main("fit", [*tiny, *data])


@pytest.fixture
def moved(run, tmp_path):
    return Path(shutil.copytree(run, tmp_path / "moved"))


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_is_resumed_by_its_checkpoint_alone(moved, run, capsys):
    assert fit.main("fit", ["--checkpoint", str(moved / "last.ckpt"), "--trainer.max-epochs=3"]) == 0
    assert f"resume {moved / 'last.ckpt'}: epoch 2, step 6\n" in capsys.readouterr().out
    assert logged(moved, "val/loss") == logged(run, "val/loss")
    assert len(logged(moved, "val/loss", version=1)) == 1
    old, new = (read_checkpoint(folder / "last.ckpt").header.provenance for folder in (run, moved))
    assert (new["step"], old["parts"], new["parts"]) == (9, 1, 2)
    assert new["wall_s"] > old["wall_s"] > 0
    before, after = (yaml.safe_load((folder / "config.yaml").read_text()) for folder in (run, moved))
    assert "checkpoint" not in after  # or the configuration would resume this run wherever it is used
    assert after == {**before, "output": str(moved), "trainer": {**before["trainer"], "max_epochs": 3}}


def test_a_run_that_is_training_is_not_resumed_nor_begun_a_second_time(moved, tiny, data):
    more = ["--checkpoint", str(moved), "--trainer.max-epochs=4"]
    before = files(moved)
    with closing(lock(moved / "config.yaml")), pytest.raises(ConfigError, match="another pflow fit is training in"):
        fit.main("fit", more)
    assert files(moved) == before

    def second(*_):
        with pytest.raises(BlockingIOError):  # also after the first checkpoint, which replaces the configuration
            lock(moved / "config.yaml")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EpochLine, "on_train_epoch_end", second)
        assert fit.main("fit", more) == 0
    assert files(moved)["config.yaml"] != before["config.yaml"]
    for name in ("best.ckpt", "last.ckpt"):  # before it has any
        (moved / name).unlink()
    again = [*tiny, *data, f"--output={moved}"]
    with closing(lock(moved / "config.yaml")), pytest.raises(ConfigError, match="another pflow fit is training in"):
        fit.main("fit", again)
    assert fit.main("fit", [*again, "--trainer.max-epochs=1"]) == 0


def test_a_resume_that_fails_writes_nothing(moved, sample_dir, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before, other = files(tmp_path), sample_dir / "cld_multi_train_small.root"
    for options, message in (
        (["--data.train=missing.root", "--trainer.max-epochs=3"], r"missing\.root"),
        ([f"--data.train={other}", "--trainer.max-epochs=3"], "reads detector 'ild_g4' alone"),
        ([f"{NETWORK}.width=64", "--trainer.max-epochs=3"], "width is 64"),
        (["--output=other/folder"], NOTHING_LEFT),
        (["--output=other/folder", "--trainer.max-steps=6"], r"has 6 steps, and .* raise --trainer\.max-steps"),
    ):
        with pytest.raises(PflowError, match=message):
            fit.main("fit", [f"--checkpoint={moved}", *options])
        assert files(tmp_path) == before
        assert os.listdir(tmp_path) == ["moved"]
    with pytest.raises(PflowError, match="not a finite number"):  # after the first steps, which are logged
        fit.main("fit", [f"--checkpoint={moved}", "--model.lr=1e30", "--trainer.max-epochs=3"])
    assert all(files(tmp_path)[name] == content for name, content in before.items())


def test_a_finished_run_names_the_option_to_raise_and_its_best_model(moved, capsys):
    assert fit.main("fit", [f"--checkpoint={moved}"]) == 0
    shown = capsys.readouterr().out
    assert re.search(NOTHING_LEFT, shown)
    wrong = logged(moved, "val/wrong_energy")
    assert len(wrong) == 2
    epoch = wrong.index(min(wrong)) + 1
    assert read_checkpoint(moved / "best.ckpt").header.provenance["epoch"] + 1 == epoch
    said = f"best model: {moved / 'best.ckpt'} (epoch {epoch}, wrong energy {min(wrong):.2%})"
    assert shown.splitlines()[-1] == said


def test_a_moved_run_keeps_its_best_model_and_takes_a_new_rate(moved, capsys):
    content = torch.load(moved / "last.ckpt", weights_only=True)
    (state,) = (state for name, state in content["callbacks"].items() if "ModelCheckpoint" in name and state["monitor"])
    state["best_model_score"] = state["kth_value"] = torch.zeros(())  # no epoch to come is better
    state["best_k_models"] = dict.fromkeys(state["best_k_models"], torch.zeros(()))
    torch.save(content, moved / "last.ckpt")
    best = read_checkpoint(moved / "best.ckpt").digest
    options = ["--trainer.max-epochs=3", "--model.lr=0.02", "--model.final-lr=1"]
    assert fit.main("fit", [f"--checkpoint={moved}", *options]) == 0
    assert logged(moved, "lr-AdamW/pg1", version=1) == [0.02]
    assert read_checkpoint(moved / "best.ckpt").digest == best
    assert re.search(rf"{moved / 'best.ckpt'} \(epoch [12], wrong energy 0.00%\)", capsys.readouterr().out)


def test_a_run_is_not_overwritten_nor_resumed_without_its_checkpoint(moved, tiny, data):
    with pytest.raises(ConfigError, match=r"already holds a run .*--checkpoint"):
        fit.main("fit", [*tiny, *data, f"--output={moved}"])
    (moved / "last.ckpt").unlink()
    with pytest.raises(ConfigError, match=r"has no last\.ckpt to resume: begin it again, with pflow fit --config"):
        fit.main("fit", [f"--checkpoint={moved}"])


def test_a_model_of_one_detector_begins_no_training_on_another(sample_dir, tmp_path):
    sample = sample_dir / "cld_multi_test_small.root"
    data = [f"--data.train={sample}", f"--data.val={sample}", f"--output={tmp_path / 'run'}"]
    with pytest.raises(
        InputError, match=r"reads detector 'ild_g4' alone, .* differs in b_field.*'general' reads any detector"
    ):
        fit.main("fit", [*data, "--start-from=ild-g4-photon"])


def test_a_fit_can_begin_with_a_trained_model(run, small, tmp_path, capsys):
    data = [f"--data.train={small['test']}", f"--data.val={small['train']}"]
    options = ["--trainer.max_epochs=1", *LIMITS, "--model.lr=1e-12", "--trainer.enable_progress_bar=false"]
    begun = tmp_path / "begun"
    assert fit.main("fit", [*data, *options, f"--start-from={run / 'best.ckpt'}", f"--output={begun}"]) == 0
    start, end = re.findall(r"val loss (-?[\d.]+), wrong energy ([\d.]+)%", capsys.readouterr().out)
    assert [float(text) for text in start] == pytest.approx([float(text) for text in end], rel=0.01)
    old, new = (load_model(folder / "best.ckpt") for folder in (run, begun))
    assert dataclasses.replace(new.tokeniser, sample=old.tokeniser.sample) == old.tokeniser
    for name, value in old.reconstructor.state_dict().items():
        torch.testing.assert_close(new.reconstructor.state_dict()[name], value, rtol=0, atol=1e-6)
    provenance = new.config["provenance"]
    assert provenance["began_with"]["sha256"] == old.digest
    assert provenance["began_with"]["train"] == ["gamma1_val_small.root"]
    assert provenance["step"] == 2

    options[0] = "--trainer.max_epochs=2"
    continued = [f"--start-from={run / 'best.ckpt'}", f"--checkpoint={begun / 'last.ckpt'}", f"--output={begun}"]
    assert fit.main("fit", [*data, *options, *continued]) == 0
    provenance = read_checkpoint(begun / "last.ckpt").header.provenance
    assert (provenance["step"], provenance["began_with"]["sha256"]) == (4, old.digest)


def test_weights_remember_what_they_have_learnt(moved, small, tmp_path):
    with pytest.warns(UserWarning, match="training files.* differ from the checkpoint's"):
        fit.main("fit", [f"--checkpoint={moved}", f"--data.train={small['train']}", "--trainer.max-epochs=3", *LIMITS])
    provenance = read_checkpoint(moved / "last.ckpt").header.provenance
    assert provenance["train"] == ["gamma1_val_small.root", "gamma1_train_small.root"]
    assert provenance["uuids"] == sorted(file_uuid(small[split]) for split in ("train", "val"))
    words = [f"--start-from={moved / 'best.ckpt'}", f"--data.train={small['test']}", f"--data.val={small['val']}"]
    with pytest.warns(UserWarning, match=r"gamma1_val_small\.root: the model was trained on this file"):
        fit.main("fit", [*words, "--trainer.max-steps=1", f"--output={tmp_path / 'on'}"])


@pytest.mark.filterwarnings("ignore:.*the model was trained on this file")
def test_a_training_that_is_no_better_than_its_start_says_so(run, data, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(pl.Trainer, "validate", lambda *_, **__: [{MONITOR: 0.0}])
    start = str(run / "best.ckpt")
    words = ["--trainer.max_epochs=1", f"--output={tmp_path / 'worse'}", f"--start-from={start}"]
    words += ["--trainer.callbacks+=ModelCheckpoint", "--trainer.callbacks.monitor=val/loss"]  # the user's own
    assert fit.main("fit", [*data, *words]) == 0
    said = capsys.readouterr().out
    assert f"no better than at the start: the model it began with, {start}, is as good" in said


SWA = ["--trainer.callbacks+=StochasticWeightAveraging", "--trainer.callbacks.swa_lrs=0.05"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model_checkpoint.save_top_k=3"], r"save_top_k is 3, but all would be best\.ckpt: give each a name"),
        (["--model_checkpoint.save_last=link"], "save_last: pflow fit writes last.ckpt itself, no link"),
        (SWA, "StochasticWeightAveraging: its average would be in no checkpoint: use --ema.decay"),
    ],
)
def test_what_would_lose_the_best_model_is_refused(tiny, data, run, options, message):
    with pytest.raises(ConfigError, match=message):
        fit.main("fit", [*tiny, *data, *options, f"--start-from={run / 'best.ckpt'}"])


def test_several_models_are_kept_and_a_users_own_callback_too(tiny, data, tmp_path):
    several = ["--model_checkpoint.save_top_k=2", "--model_checkpoint.filename=best-{epoch}"]
    own = ["--trainer.callbacks+=EMAWeightAveraging", "--trainer.callbacks+=ModelCheckpoint"]
    own += ["--trainer.callbacks.save_top_k=-1"]
    words = [*several, *own, f"--trainer.callbacks.dirpath={tmp_path / 'own'}", "--trainer.max-epochs=2"]
    assert fit.main("fit", [*tiny, *data, *words, f"--output={tmp_path / 'run'}"]) == 0
    assert {path.name for path in tmp_path.rglob("best*.ckpt")} == {"best-epoch=0.ckpt", "best-epoch=1.ckpt"}
    assert len(list((tmp_path / "own").glob("*.ckpt"))) == 2


def test_a_resumed_run_did_not_begin_with_another_model(run, capsys):
    before = (run / "config.yaml").read_bytes()
    words = [f"--checkpoint={run}", "--start-from=general", "--trainer.max-epochs=3"]
    assert main_with_exit_code(["fit", *words]) == 2
    assert f"{run}, which began with random weights, not general: leave" in capsys.readouterr().err
    assert (run / "config.yaml").read_bytes() == before


@pytest.mark.filterwarnings("ignore:.*the model was trained on this file")
@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--data.hit-energy-min=0.0", r"data\.hit_energy_min is 0\.0, but the weights have 0\.05"),  # the default
        (f"{NETWORK}.width=16", r"model\.reconstructor\.network\.width is 16, but the weights have 8"),
        (f"{NETWORK}.encoder_layers=2", r"model\.reconstructor\.network\.encoder_layers is 2, but the weights have 1"),
        (f"--model.reconstructor={POINTING}", f"class_path is {POINTING}, but the weights have pflow.*Translation"),
    ],
)
def test_what_does_not_fit_the_weights_is_refused_by_name(run, data, option, message):
    resumed = ["--config", str(run / "config.yaml"), f"--checkpoint={run / 'last.ckpt'}"]
    for model in ([f"--start-from={run / 'best.ckpt'}"], resumed):
        with pytest.raises(ConfigError, match=message):
            fit.main("fit", [*model, *data, option])


@pytest.mark.parametrize(
    ("name", "dropout", "stated"), [("ild-g4-photon", 0.0, None), ("general", 0.1, "model.reconstructor.class_path")]
)
def test_an_option_holds_that_is_the_default_of_some_network(name, dropout, stated, capsys):
    """The shipped models have dropout 0.1 and 0; options equal to a default once gave way in silence."""
    theirs = read_checkpoint(name).header.model["init_args"]["network"]
    assert theirs["dropout"] == 0.1 - dropout
    options = [f"{NETWORK}.dropout={dropout}", *([] if stated is None else [f"--{stated}={POINTING}"])]
    assert fit.main("fit", [f"--start-from={name}", *options, "--print_config"]) == 0
    ours = network(yaml.safe_load(capsys.readouterr().out))  # with options that are newer than the model
    assert {**ours, **theirs, "dropout": dropout} == ours


def test_weights_of_losses_that_a_configuration_takes_back_are_said(tmp_path):
    """A mapping replaces the whole one, and an option a single weight."""
    weights = {"model": {"reconstructor": {"init_args": {"loss": {"weights": {"energy": 0.1}}}}}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(weights))
    said = (
        r"mine\.yaml: weights of losses that it does not name are 1: .* pdg \(the model's: 1\.5\), refined_assignment"
    )
    words = ["--start-from=general", "--config", str(tmp_path / "mine.yaml"), "--print_config"]
    with pytest.warns(UserWarning, match=said):
        fit.main("fit", words)
    others = read_checkpoint("general").header.model["init_args"]["loss"]["weights"].items() - {("energy", 0.6)}
    fit.main("fit", [*words, *(f"--model.reconstructor.loss.weights.{name}={weight}" for name, weight in others)])
    weights["model"]["reconstructor"]["init_args"]["loss"]["weights"] = {}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(weights))
    with pytest.warns(UserWarning, match=r"energy \(the model's: 0\.6\)"):
        fit.main("fit", words)


@pytest.mark.parametrize("null", [None, "--start-from=null", "--config=b.yaml"])
def test_options_in_a_file_override_the_models_and_null_unsets_it(run, tmp_path, monkeypatch, null, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text(
        f"start_from: {run / 'best.ckpt'}\nmodel: {{reconstructor: {{init_args: {{network: {{dropout: 0.25}}}}}}}}\n"
    )
    (tmp_path / "b.yaml").write_text("start_from: null\n")
    assert fit.main("fit", ["--config=a.yaml", *filter(None, [null]), "--print_config"]) == 0
    options = network(yaml.safe_load(capsys.readouterr().out))
    assert (options["dropout"], options["width"]) == (0.25, PointingNetworkConfig().width if null else 8)


FEW = ("--data.batch_size=8", "--data.hit_energy_min=0.05")
SHORT = ("--trainer.max_epochs=1", *LIMITS, *FEW, "--trainer.enable_progress_bar=false")


@pytest.fixture(scope="module")
def first_stage(small, tmp_path_factory):
    """A pointing model without refinement."""
    folder = tmp_path_factory.mktemp("first") / "run"
    options = [
        f"{NETWORK}.{size}" for size in ("width=8", "heads=1", "hidden_width=8", "encoder_layers=1", "decoder_layers=1")
    ]
    options += [f"--data.train={small['test']}", f"--data.val={small['val']}", f"--output={folder}"]
    assert fit.main("fit", [*options, *SHORT, "--model.lr=1e-12"]) == 0
    return folder


SECOND_STAGE = (f"{NETWORK}.refine_layers=1", "--trainer.callbacks+=pflow.train.callbacks.Freeze")


@pytest.mark.filterwarnings("ignore:.*the model was trained on this file")
def test_a_fit_can_add_a_part_to_a_trained_model_and_freeze_the_rest(first_stage, data, tmp_path, capsys):
    options = [*SECOND_STAGE, "--model.reconstructor.training.deferred_target_prob=0.1"]
    assert fit.main("fit", [*data, *SHORT, *options, f"--start-from={first_stage / 'best.ckpt'}"]) == 0
    assert "begin at random: " in capsys.readouterr().out
    old, new = (load_model(folder / "best.ckpt") for folder in (first_stage, tmp_path / "run"))
    assert new.config["model"]["init_args"]["training"]["deferred_target_prob"] == 0.1
    assert network(new.config)["hidden_width"] == 8
    theirs, ours = old.reconstructor.state_dict(), new.reconstructor.state_dict()
    assert theirs.keys() < ours.keys()
    for name, value in theirs.items():
        assert torch.equal(ours[name], value), name


def test_devices_that_are_not_the_tasks_of_the_slurm_job_are_refused(tiny, data, monkeypatch):
    variables = {"SLURM_JOB_NAME": "fit", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
    for name, value in {**variables, "SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="Set `devices=1`"):
        fit.main("fit", [*tiny, *data, "--trainer.accelerator=cpu", "--trainer.devices=2"])


def test_random_weights_are_not_frozen_and_weights_alone_not_continued(run, data, tmp_path):
    with pytest.raises(ConfigError, match=r"weights are random; name a trained model with --start-from"):
        fit.main("fit", [*data, *SECOND_STAGE, "--trainer.enable_progress_bar=false"])
    write_weights(run / "best.ckpt", tmp_path / "toy")
    config = ["--config", str(run / "config.yaml"), f"--output={tmp_path / 'other'}"]
    with pytest.raises(ConfigError, match=r"toy holds weights alone: .* last\.ckpt"):
        fit.main("fit", [*config, f"--checkpoint={tmp_path / 'toy'}"])


def test_averaged_checkpoints_are_continued_with_averaging_only(tiny, data, tmp_path):
    folder = tmp_path / "run"
    fit.main("fit", [*tiny, *data, "--ema.decay=0.9", "--trainer.max_epochs=1"])
    content = torch.load(folder / "best.ckpt", weights_only=True)
    loaded = load_model(folder / "best.ckpt").reconstructor.state_dict(prefix="reconstructor.")
    assert all(torch.equal(value, content["state_dict"][name]) for name, value in loaded.items())
    assert any(not torch.equal(value, content["current_model_state"][name]) for name, value in loaded.items())
    for option, message in (
        ("--ema.decay=null", r"resume it with --ema\.decay 0\.9"),
        ("--model.optimiser=muon", "the optimiser is muon, but adamw of the checkpoint is resumed"),
    ):
        with pytest.raises(ConfigError, match=message):
            fit.main("fit", [f"--checkpoint={folder}", option])


def test_help_begins_with_what_is_used_most_and_has_dashes_and_texts(capsys):
    assert fit.main("fit", ["--help"]) == 0
    text = capsys.readouterr().out
    assert not [name for name in re.findall(r"--[\w.-]+", text) if "_" in name]
    ours = text[text.index("Event files for training") : text.index("--model-checkpoint ")]
    assert re.findall(r"--data\.[\w-]+ [A-Z_\[{,.a-z\]}]+\s+\(type", ours) == []
    shown = set(re.findall(r"--[a-z][\w.-]+", "\n".join(text.splitlines()[:24])))
    assert {"--model.reconstructor.network.width", "--model.lr", "--checkpoint", "--trainer.max-epochs"} <= shown
    names = {name for name in shown if name != "--print-config"}
    values = {"--config": "gamma1", "--start-from": "null", "--checkpoint": "null"}
    words = [word for name in sorted(names) for word in (name, values.get(name, "8"))]
    assert fit.main("fit", [*words, "--print-config"]) == 0  # each is one


def test_shipped_configurations_are_not_replaced_in_silence(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gamma1").write_text("model: {reconstructor: {init_args: {network: {width: 48}}}}")
    for name, width in (("gamma1", 32), ("./gamma1", 48)):
        with warnings.catch_warnings(record=True, action="always") as said:
            assert fit.main("fit", ["--config", name, "--print-config"]) == 0
        assert network(yaml.safe_load(capsys.readouterr().out))["width"] == width
        assert any("comes with pflow; your file is './gamma1'" in str(warning.message) for warning in said) == (
            width == 32
        )


@pytest.mark.usefixtures("as_in_the_foreground")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_an_interrupted_fit_is_not_done_and_says_how_to_resume(tiny, data, tmp_path, monkeypatch, capsys, number, code):
    monkeypatch.setattr(ParticleFlow, "on_train_batch_start", lambda *_: os.kill(os.getpid(), number))
    assert main_with_exit_code(["fit", *tiny, *data]) == code
    last = tmp_path / "run" / "last.ckpt"
    said = f"pflow fit: terminated: saved {last}; resume with: pflow fit --checkpoint {last.parent}"
    assert capsys.readouterr().err.splitlines()[-1] == said
    assert torch.load(last, weights_only=True)["global_step"] == 2


@pytest.mark.usefixtures("as_in_the_foreground")
def test_a_second_ctrl_c_stops_at_once(tiny, data, monkeypatch, capsys):
    def interrupt(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(ParticleFlow, "on_train_batch_start", interrupt)
    assert main_with_exit_code(["fit", *tiny, *data]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "pflow fit: interrupted: nothing was saved"


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--trainer.max_epoch=3", "nearest matches: --trainer.max_epochs"),  # no abbreviation of it
        (f"{NETWORK}.widht=3", "nearest matches: --network.width"),
        ("--data.batch_size=x", "error: --data.batch_size: expected int, found x"),
        ("--trainer.max-epochs=2.5", "error: --trainer.max_epochs: expected int, found 2.5"),
        ("--seed-everything=x", "error: --seed_everything: expected bool or int, found x"),
        ("--model.optimiser=adam", "error: --model.optimiser: expected one of 'adamw', 'muon', found adam"),
        ("--model.reconstructor=x", "error: --model.reconstructor: expected a class, found x"),
        ("--data.merge.ecal-sizes=20", "error: --data.merge.ecal_sizes: expected Sequence, found 20"),
        ("--data.merge.ecal-mm=20", "error: --data.merge needs hcal_mm, too: give --data.merge.hcal_mm"),
        ("--data.augment.overlay.cone=x", "error: --data.augment.overlay.cone: expected float, found x"),
        ("--config={}/a.yaml", "nearest matches: --trainer.max_steps"),
        ("--model.reconstructor.width=3", "nearest matches: --network.width"),
        ("--trainer.logger [CSVLogger]", "error: --trainer.logger needs save_dir, too: give --trainer.logger.save_dir"),
        ("--trainer.callbacks [3]", "error: --trainer.callbacks: Not a valid subclass of Callback, found 3\n"),
        ("--lr_scheduler=StepLR", "nearest matches: --model.warmup, --model.final_lr"),
        ("--learning-rate=1", "nearest matches: --model.lr"),
        ("--batch-size=1", "nearest matches: --data.batch_size"),
        ("--model.start-from=general", "--model.start_from takes the value of --start-from"),
        ("--data.train=a.root b.root", "rguments: b.root: several files are a list, '[a.root, b.root]', or a pattern"),
        ("--config={}/linked.yaml", "data.seed takes the value of seed_everything"),
    ],
)
def test_wrong_usage_is_said_in_one_line(option, message, tmp_path, capsys):
    (tmp_path / "a.yaml").write_text("trainer: {max_step: 3}")
    (tmp_path / "linked.yaml").write_text("data: {seed: 3}")
    assert main_with_exit_code(["fit", *option.format(tmp_path).split()]) == 2
    said = capsys.readouterr().err
    assert said.startswith("pflow fit: error: ")
    assert message in said
    assert said.count("\n") == 1


@pytest.fixture(scope="module")
def with_a_bad_event(make_photons, spoil, tmp_path_factory) -> str:
    """A file of 12 events; one of them has no usable hit."""
    path = str(tmp_path_factory.mktemp("bad") / "bad.root")
    write_events(path, spoil(make_photons(12), 5, "hits.energy", np.nan, of_all=True))
    return path


@pytest.mark.parametrize("workers", [0, 1])
def test_skipped_entries_are_in_the_exit_code(workers, with_a_bad_event, data, tiny, capfd):
    options = [*tiny, *data, f"--data.train={with_a_bad_event}", f"--data.num_workers={workers}"]
    options += ["--trainer.max_epochs=1", "--data.on_error=skip"]
    assert main_with_exit_code(["fit", *options]) == 3
    said = capfd.readouterr().err
    assert "1 of 12 entries cannot be used" in said
    assert "Traceback" not in said
