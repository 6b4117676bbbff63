from __future__ import annotations

import csv
import os
import shutil
import signal
from pathlib import Path

import awkward as ak
import numpy as np
import pytest
import torch
import yaml

from pflow.checkpoint.format import read_checkpoint
from pflow.checkpoint.load import load_model
from pflow.checkpoint.save import write_weights
from pflow.cli.fit import main
from pflow.errors import ConfigError, InputError
from pflow.io.open import read_events
from pflow.io.particles_root import read_provenance, read_reco
from pflow.train.ema import KEY
from pflow.train.module import ParticleFlow


def rows(folder, version: int = 0) -> list[dict[str, str]]:
    with open(folder / "logs" / f"version_{version}" / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def logged(folder, key: str, version: int = 0) -> list[float]:
    return [float(row[key]) for row in rows(folder, version) if row.get(key)]


def test_a_fit_leaves_the_best_and_the_last_checkpoint_and_its_configuration(run):
    assert {"best.ckpt", "last.ckpt", "config.yaml", "logs"} <= set(os.listdir(run))
    assert yaml.safe_load((run / "config.yaml").read_text())["network"]["width"] == 8


def test_logs_are_kept_as_csv_and_for_tensorboard(run):
    (events,) = (run / "logs" / "version_0").glob("events.out.tfevents.*")
    assert events.stat().st_size > 0
    assert len(logged(run, "val/loss")) == 2


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("name", ["loss", "charge", "pdg", "energy", "direction"])
def test_each_loss_is_logged_by_name(run, split, name):
    values = logged(run, f"{split}/{name}")
    assert len(values) == 2
    assert np.isfinite(values).all()


def test_errors_a_physicist_understands_are_logged(run):
    assert all(value > 0 for value in logged(run, "val/energy_error"))
    assert all(0 < value < 180 for value in logged(run, "val/angle_deg"))


def test_training_lowers_the_loss(run):
    first, second = logged(run, "train/loss")
    assert second < first


def test_the_total_is_the_sum_of_the_named_losses(run):
    total = logged(run, "val/loss")
    parts = [logged(run, f"val/{name}") for name in ("charge", "pdg", "energy", "direction")]
    np.testing.assert_allclose(total, np.sum(parts, axis=0), rtol=1e-4)


def test_the_checkpoint_says_where_it_comes_from(run):
    header = read_checkpoint(run / "best.ckpt").header
    assert header["provenance"]["train"] == ["gamma1_val_small.root"]
    assert header["provenance"]["n_events"] == 50
    assert header["network"]["width"] == 8
    assert header["max_particles"] == 3


def test_checkpoints_hold_weights_and_plain_data_only(run):
    for name in ("best.ckpt", "last.ckpt"):
        torch.load(run / name, weights_only=True)


def test_the_model_of_a_checkpoint_is_ready_to_use(run):
    model = load_model(run / "best.ckpt")
    assert not model.reconstructor.training
    assert model.tokeniser.recipe.hit_energy_min == 0.05
    assert model.max_particles == 3


@pytest.mark.filterwarnings("ignore:The dirpath has changed:UserWarning")  # the copy, not the run itself, is continued
def test_a_fit_continues_where_it_stopped(run, tmp_path, small):
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    config = ["--config", str(folder / "config.yaml"), "--trainer.max_epochs=3", f"--output={folder}"]
    assert main(["fit", *config, f"--ckpt_path={folder / 'last.ckpt'}"]) == 0
    assert logged(folder, "val/loss") == logged(run, "val/loss")
    assert len(logged(folder, "val/loss", version=1)) == 1
    assert read_checkpoint(folder / "last.ckpt").header["provenance"]["step"] == 21


@pytest.mark.filterwarnings("ignore:The dirpath has changed:UserWarning")
def test_a_fit_in_two_parts_is_the_fit_in_one(tiny, small, tmp_path):
    data = [f"--data.train={small['val']}", f"--data.val={small['val']}"]
    common = ["fit", *tiny, *data, "--model.schedule=constant", "--model.warmup=0"]
    whole, part = tmp_path / "whole", tmp_path / "part"
    main([*common, "--trainer.max_epochs=2", f"--output={whole}"])
    main([*common, "--trainer.max_epochs=1", f"--output={part}"])
    main([*common, "--trainer.max_epochs=2", f"--output={part}", f"--ckpt_path={part / 'last.ckpt'}"])
    for key in ("train/loss", "val/loss", "val/angle_deg"):
        assert logged(part, key) + logged(part, key, version=1) == logged(whole, key), key


def test_the_same_seed_gives_the_same_losses(run, tiny, tmp_path, small):
    data = [f"--data.train={small['val']}", f"--data.val={small['val']}"]
    main(["fit", *tiny, *data, "--trainer.max_epochs=2", f"--output={tmp_path / 'again'}"])
    assert logged(tmp_path / "again", "train/loss") == logged(run, "train/loss")


def test_a_folder_with_a_run_is_not_overwritten(run, tiny, small):
    data = [f"--data.train={small['val']}", f"--data.val={small['val']}"]
    with pytest.raises(ConfigError, match=r"already holds a run .*--ckpt_path"):
        main(["fit", *tiny, *data, f"--output={run}"])


@pytest.mark.parametrize("verb", ["validate", "test"])
def test_a_checkpoint_is_evaluated_without_telling_its_network(run, small, verb, capsys):
    split = {"validate": "val", "test": "test"}[verb]
    code = main(
        [
            verb,
            f"--ckpt_path={run / 'best.ckpt'}",
            f"--data.{split}={small['val']}",
            "--trainer.enable_progress_bar=false",
        ]
    )
    assert code == 0
    assert f"{split}/energy_error" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:The dirpath has changed:UserWarning")
def test_a_pointing_fit_that_stops_within_an_epoch_goes_on_where_it_was(small, tmp_path):
    """It draws at random in training, and sees the rest of the epoch."""
    options = [
        *("--config", str(Path(__file__).parents[2] / "configs" / "flagship_photon.yaml")),
        *(f"--network.{name}={value}" for name, value in {"width": 8, "heads": 1, "feedforward": 8}.items()),
        *("--network.encoder_layers=1", "--network.decoder_layers=1", "--network.hidden=4", "--data.batch_size=8"),
        *(f"--data.train={small['val']}", f"--data.val={small['val']}", "--trainer.max_epochs=9"),
        *("--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false", "--trainer.val_check_interval=2"),
        *("--model.schedule=constant", "--model.warmup=0"),
    ]
    whole, part = tmp_path / "whole", tmp_path / "part"
    main(["fit", *options, "--trainer.max_steps=10", f"--output={whole}"])
    main(["fit", *options, "--trainer.max_steps=4", f"--output={part}"])
    assert read_checkpoint(part / "best.ckpt").header["provenance"]["step"] == 2
    assert read_checkpoint(part / "last.ckpt").header["provenance"]["step"] == 4
    main(["fit", *options, "--trainer.max_steps=10", f"--output={part}", f"--ckpt_path={part / 'last.ckpt'}"])
    later = logged(part, "val/loss", version=1)
    assert later == logged(whole, "val/loss")[2:]
    assert len(later) == 2


def test_a_fit_can_begin_with_a_trained_model(run, small, tmp_path):
    """Its weights, network and tokens, without any word of them: the configuration says how to train."""
    data = [f"--data.train={small['test']}", f"--data.val={small['val']}"]
    options = ["--trainer.max_epochs=1", "--model.lr=1e-12", "--trainer.enable_progress_bar=false"]
    begun = tmp_path / "begun"
    assert main(["fit", *data, *options, f"--start_from={run / 'best.ckpt'}", f"--output={begun}"]) == 0
    old, new = (load_model(folder / "best.ckpt") for folder in (run, begun))
    assert new.tokeniser == old.tokeniser
    for name, value in old.reconstructor.state_dict().items():
        torch.testing.assert_close(new.reconstructor.state_dict()[name], value, rtol=0, atol=1e-6)
    provenance = new.config["provenance"]
    assert provenance["began_with"]["sha256"] == old.digest
    assert provenance["began_with"]["train"] == ["gamma1_val_small.root"]
    assert provenance["step"] == 4

    options[0] = "--trainer.max_epochs=2"
    continued = [f"--start_from={run / 'best.ckpt'}", f"--ckpt_path={begun / 'last.ckpt'}", f"--output={begun}"]
    assert main(["fit", *data, *options, *continued]) == 0
    provenance = read_checkpoint(begun / "last.ckpt").header["provenance"]
    assert (provenance["step"], provenance["began_with"]["sha256"]) == (8, old.digest)


def test_a_model_to_begin_with_must_read_the_same_tokens(run, small, tmp_path):
    data = [f"--data.train={small['test']}", f"--data.val={small['val']}", f"--output={tmp_path / 'new'}"]
    with pytest.raises(ConfigError, match=r"checkpoint to begin with was trained with hit_energy_min 0\.05, not 0\.1"):
        main(["fit", *data, "--data.hit_energy_min=0.1", f"--start_from={run / 'best.ckpt'}"])


@pytest.mark.parametrize("option", ["--network.width=16", "--network.encoder_layers=2"])
def test_weights_to_begin_with_must_fit(run, small, tmp_path, option):
    data = [f"--data.train={small['test']}", f"--data.val={small['val']}", f"--output={tmp_path / 'new'}"]
    with pytest.raises(InputError, match="its weights do not fit its configuration"):
        main(["fit", *data, option, f"--start_from={run / 'best.ckpt'}"])


def test_a_fit_can_add_a_part_to_a_trained_model(small, tmp_path, capsys):
    """The second reading, to one that has none; what is configured takes the place of the model's own."""
    data = [f"--data.train={small['test']}", f"--data.val={small['val']}", f"--output={tmp_path}"]
    options = ["--trainer.max_epochs=1", "--model.lr=1e-12", "--trainer.enable_progress_bar=false"]
    network = ["--network.architecture=pointing", "--network.revise_layers=1", "--network.own_incidence=0.9"]
    start = tmp_path / "plain"
    size = [f"--network.{name}={value}" for name, value in (("width", 8), ("heads", 1), ("hidden", 8), ("cone", 0.2))]
    plain = [*network[:1], *size, "--data.readout=true", f"--output={start}"]
    assert main(["fit", *data[:2], *options, *plain]) == 0
    assert main(["fit", *data, *options, *network, f"--start_from={start / 'best.ckpt'}"]) == 0
    assert "begin at random: reconstructor.network.revision" in capsys.readouterr().out
    old, new = load_model(start / "best.ckpt").reconstructor, load_model(tmp_path / "best.ckpt").reconstructor
    assert new.training_config.scheduled_sampling_prob == 0.9
    assert new.network.config.cone_angle == old.network.config.cone_angle
    added = set(new.state_dict()) - set(old.state_dict())
    assert added
    assert all(name.startswith("network.revision.") for name in added)
    torch.testing.assert_close(new.state_dict()["network.begin"], old.state_dict()["network.begin"], rtol=0, atol=1e-6)


def test_a_second_reading_needs_a_first_that_is_trained(small, tmp_path):
    data = [f"--data.train={small['test']}", f"--data.val={small['val']}", f"--output={tmp_path / 'new'}"]
    network = ["--network.architecture=pointing", "--network.revise_layers=1", "--data.readout=true"]
    with pytest.raises(ConfigError, match=r"network\.revise_layers: .* name one with --start_from"):
        main(["fit", *data, *network])


def test_predictions_are_written_one_entry_an_event(run, small, tmp_path):
    path = tmp_path / "out.root"
    code = main(
        [
            "predict",
            f"--ckpt_path={run / 'best.ckpt'}",
            f"--data.predict={small['test']}",
            "--trainer.enable_progress_bar=false",
            f"--output={path}",
        ]
    )
    assert code == 0
    found = read_reco(path)
    assert found.event.tolist() == read_events(small["test"]).event.tolist()
    assert ak.max(ak.num(found.particles)) <= 3
    provenance = read_provenance(path)
    assert provenance["checkpoint"]["sha256"] == load_model(run / "best.ckpt").digest
    assert [(source["path"], source["entries"]) for source in provenance["inputs"]] == [(small["test"], 100)]


def test_predictions_are_those_of_reconstruct(run, small, tmp_path):
    from pflow.inference.events import reconstruct

    path = tmp_path / "out.root"
    options = [f"--ckpt_path={run / 'best.ckpt'}", f"--data.predict={small['val']}", f"--output={path}"]
    main(["predict", *options, "--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu"])
    direct = reconstruct(read_events(small["val"]), run / "best.ckpt", device="cpu")
    written = read_reco(path)
    assert written.flags.tolist() == direct.flags.tolist()
    assert ak.num(written.particles).to_list() == ak.num(direct.particles).to_list()
    np.testing.assert_allclose(ak.flatten(written.particles.energy), ak.flatten(direct.particles.energy), rtol=1e-4)


def test_weights_alone_predict_what_their_checkpoint_does(run, small, tmp_path):
    write_weights(run / "best.ckpt", tmp_path / "toy")
    written = {}
    for name, source in (("checkpoint", run / "best.ckpt"), ("weights", tmp_path / "toy")):
        path = tmp_path / f"{name}.root"
        options = [f"--ckpt_path={source}", f"--data.predict={small['val']}", f"--output={path}"]
        assert main(["predict", *options, "--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu"]) == 0
        written[name] = read_reco(path).particles.energy.to_list()
        assert read_provenance(path)["checkpoint"] == {"path": str(source), "sha256": load_model(source).digest}
    assert written["weights"] == written["checkpoint"]


def test_a_training_is_not_continued_from_weights_alone(run, tmp_path):
    write_weights(run / "best.ckpt", tmp_path / "toy")
    config = ["--config", str(run / "config.yaml"), f"--output={tmp_path / 'other'}"]
    with pytest.raises(ConfigError, match=r"toy holds weights alone: .* last\.ckpt"):
        main(["fit", *config, f"--ckpt_path={tmp_path / 'toy'}"])


def test_weights_that_do_not_fit_are_a_clear_error(run, small, tmp_path):
    content = torch.load(run / "best.ckpt", weights_only=True)
    content["state_dict"]["network.extra"] = torch.zeros(1)
    torch.save(content, tmp_path / "bad.ckpt")
    with pytest.raises(InputError, match=r"bad\.ckpt, 'state_dict': its weights do not fit .*extra"):
        main(["validate", f"--ckpt_path={tmp_path / 'bad.ckpt'}", f"--data.val={small['val']}"])


@pytest.fixture(scope="module")
def averaged(tiny, small, tmp_path_factory):
    """Folder of a finished fit with averaged weights: two epochs."""
    folder = tmp_path_factory.mktemp("averaged") / "run"
    data = [f"--data.train={small['val']}", f"--data.val={small['val']}", "--model.schedule=constant"]
    main(["fit", *tiny, *data, "--ema.decay=0.9", "--trainer.max_epochs=2", f"--output={folder}"])
    return folder


def weights(path) -> dict[str, torch.Tensor]:
    return torch.load(path, weights_only=True)["state_dict"]


def test_checkpoints_of_averaged_weights_are_models_of_the_average(averaged):
    content = torch.load(averaged / "best.ckpt", weights_only=True)
    loaded = load_model(averaged / "best.ckpt").reconstructor.state_dict()
    assert all(torch.equal(value, content["state_dict"][f"network.{name}"]) for name, value in loaded.items())
    assert any(not torch.equal(value, content[KEY]["raw"][f"network.{name}"]) for name, value in loaded.items())


def test_the_decay_of_the_average_is_in_the_provenance(averaged, run):
    assert read_checkpoint(averaged / "best.ckpt").header["provenance"]["ema_decay"] == 0.9
    assert read_checkpoint(run / "best.ckpt").header["provenance"]["ema_decay"] is None


def test_the_logged_validation_is_that_of_the_averaged_weights(averaged, small, capsys):
    options = ["--trainer.enable_progress_bar=false", "--data.batch_size=8", "--trainer.accelerator=cpu"]
    main(["validate", f"--ckpt_path={averaged / 'last.ckpt'}", f"--data.val={small['val']}", *options])
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "val/loss" in line)
    (found,) = (float(word) for word in line.split() if word.replace(".", "").isdigit())
    assert found == pytest.approx(logged(averaged, "val/loss")[-1], rel=1e-5)


@pytest.mark.filterwarnings("ignore:The dirpath has changed:UserWarning")
def test_a_fit_with_averaged_weights_in_two_parts_is_the_fit_in_one(tiny, small, tmp_path):
    data = [f"--data.train={small['val']}", f"--data.val={small['val']}", "--model.schedule=constant"]
    common = ["fit", *tiny, *data, "--ema.decay=0.9", "--model.warmup=0", f"--output={tmp_path / 'part'}"]
    whole = tmp_path / "whole"
    main([*common, f"--output={whole}", "--trainer.max_epochs=2"])
    main([*common, "--trainer.max_epochs=1"])
    main([*common, "--trainer.max_epochs=2", f"--ckpt_path={tmp_path / 'part' / 'last.ckpt'}"])
    expected, found = weights(whole / "last.ckpt"), weights(tmp_path / "part" / "last.ckpt")
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_continuing_without_the_average_is_an_error(averaged):
    config = ["--config", str(averaged / "config.yaml"), "--ema.decay=null", f"--output={averaged}"]
    with pytest.raises(ConfigError, match=r"continue with --ema\.decay 0\.9"):
        main(["fit", *config, f"--ckpt_path={averaged / 'last.ckpt'}"])


def test_an_input_is_not_overwritten_by_its_prediction(run, small, tmp_path):
    copy = tmp_path / "events.root"
    shutil.copy(small["val"], copy)
    before = copy.read_bytes()
    with pytest.raises(ConfigError):
        main(["predict", f"--ckpt_path={run / 'best.ckpt'}", f"--data.predict={copy}", f"--output={copy}"])
    assert copy.read_bytes() == before


def test_predicting_needs_a_file_to_write(run, small):
    with pytest.raises(ConfigError, match="--output"):
        main(["predict", f"--ckpt_path={run / 'best.ckpt'}", f"--data.predict={small['test']}"])


def test_predicting_without_a_checkpoint_is_an_error(small, tmp_path):
    with pytest.raises(ConfigError, match="--ckpt_path"):
        main(["predict", f"--data.predict={small['test']}", f"--output={tmp_path / 'out.root'}"])
    assert not list(tmp_path.iterdir())


def test_a_prediction_that_fails_leaves_nothing_behind(run, small, tmp_path):
    broken = tmp_path / "broken.root"
    content = Path(small["test"]).read_bytes()
    broken.write_bytes(content[: len(content) // 2])
    output = tmp_path / "out"
    output.mkdir()
    with pytest.raises(InputError, match=r"broken\.root"):
        main(
            [
                "predict",
                f"--ckpt_path={run / 'best.ckpt'}",
                f"--data.predict={broken}",
                f"--output={output / 'out.root'}",
                "--trainer.enable_progress_bar=false",
            ]
        )
    assert not list(output.iterdir())


def test_stacked_files_change_only_what_they_name(tmp_path, capsys):
    (tmp_path / "a.yaml").write_text("network: {width: 16, heads: 2}\nmodel: {lr: 0.5}\n")
    (tmp_path / "b.yaml").write_text("network: {width: 32}\n")
    config = [f"--config={tmp_path / 'a.yaml'}", f"--config={tmp_path / 'b.yaml'}", "--model.weight_decay=0.25"]
    assert main(["fit", *config, "--print_config"]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert (printed["network"]["width"], printed["network"]["heads"]) == (32, 2)
    assert (printed["model"]["lr"], printed["model"]["weight_decay"]) == (0.5, 0.25)


def test_a_small_file_can_be_named_for_a_group(tmp_path, capsys):
    (tmp_path / "small.yaml").write_text("width: 16\n")
    (tmp_path / "a.yaml").write_text("network: small.yaml\n")
    assert main(["fit", f"--config={tmp_path / 'a.yaml'}", "--print_config"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["network"]["width"] == 16


@pytest.mark.parametrize("name", ["gamma1", "demo"])
def test_shipped_configurations_are_valid(name, capsys):
    from pflow.resources import config_dir

    assert main(["fit", "--config", str(config_dir() / f"{name}.yaml"), "--print_config"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["network"]["special"] == "flags"


def test_the_configuration_that_is_kept_is_one_whole_file(tiny, small, tmp_path):
    (tmp_path / "small.yaml").write_text("width: 16\n")
    (tmp_path / "a.yaml").write_text("network: small.yaml\n")
    data = [f"--data.train={small['val']}", f"--data.val={small['val']}", f"--output={tmp_path / 'run'}"]
    others = [option for option in tiny if not option.startswith("--network.width")]
    main(["fit", f"--config={tmp_path / 'a.yaml'}", *others, *data, "--trainer.max_epochs=1"])
    assert [path.name for path in (tmp_path / "run").glob("*.yaml")] == ["config.yaml"]
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["network"]["width"] == 16


def test_a_fit_that_is_told_to_end_is_not_done(tiny, small, tmp_path, monkeypatch, capsys):
    """As batch systems do, with SIGTERM: a script must not take it for a finished training."""
    monkeypatch.setattr(ParticleFlow, "on_train_start", lambda _: os.kill(os.getpid(), signal.SIGTERM))
    data = [f"--data.train={small['val']}", f"--data.val={small['val']}", f"--output={tmp_path / 'run'}"]
    assert main(["fit", *tiny, *data]) == 143
    assert "pflow fit: terminated" in capsys.readouterr().err


def test_an_option_that_does_not_exist_is_wrong_usage(capsys):
    assert main(["fit", "--network.widht=3"]) == 2
    assert "widht" in capsys.readouterr().err


def test_a_network_that_cannot_be_is_a_clear_error(tiny, small, tmp_path):
    data = [f"--data.train={small['val']}", f"--data.val={small['val']}", f"--output={tmp_path / 'run'}"]
    with pytest.raises(ConfigError, match=r"network or loss: .*heads"):
        main(["fit", *tiny, *data, "--network.heads=3"])


@pytest.mark.parametrize(
    ("option", "message"),
    [("--network.width=16", "width 8, not 16"), ("--data.order=tracks_first", "order energy, not tracks_first")],
)
def test_continuing_with_another_configuration_is_an_error(run, small, tmp_path, option, message):
    config = ["--config", str(run / "config.yaml"), option, f"--output={tmp_path / 'other'}"]
    with pytest.raises(ConfigError, match=message):
        main(["fit", *config, f"--ckpt_path={run / 'last.ckpt'}"])


class Payload:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


def test_a_checkpoint_with_code_is_refused_in_every_verb(run, small, tmp_path):
    content = torch.load(run / "last.ckpt", weights_only=True)
    torch.save({**content, "callbacks": Payload(tmp_path / "ran")}, tmp_path / "bad.ckpt")
    for verb, split in (("fit", "train"), ("validate", "val"), ("test", "test"), ("predict", "predict")):
        options = [f"--data.{split}={small['val']}", f"--data.val={small['val']}", f"--output={tmp_path / verb}"]
        with pytest.raises(InputError, match="runs no code"):
            main([verb, *options, f"--ckpt_path={tmp_path / 'bad.ckpt'}", "--weights_only=false"])
    assert not (tmp_path / "ran").exists()


def test_mixed_precision_is_an_option(tiny, small, tmp_path):
    data = [f"--data.train={small['val']}", f"--data.val={small['val']}", f"--output={tmp_path / 'run'}"]
    assert main(["fit", *tiny, *data, "--trainer.max_epochs=1", "--trainer.precision=bf16-mixed"]) == 0
    assert np.isfinite(logged(tmp_path / "run", "val/loss")).all()
