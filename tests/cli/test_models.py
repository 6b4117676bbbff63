import json
import re
import shutil
import sys

import awkward as ak
import numpy as np
import pytest

from pflow.checkpoint import load_model
from pflow.cli.main import main
from pflow.errors import ConfigError, InputError
from pflow.event.events import BadEntriesWarning, ImplausibleWarning
from pflow.inference.events import reconstruct
from pflow.io.flat import write_events
from pflow.io.open import read_events
from pflow.io.root import file_uuid
from pflow.model.pointing import PointingDecodingConfig, PointingNetworkConfig, PointingReconstructor
from pflow.tokens.tokeniser import Tokeniser
from pflow.tokens.tokens import TokenConfig


@pytest.fixture(scope="module")
def few(sample_dir, tmp_path_factory):
    path = tmp_path_factory.mktemp("few") / "few.root"
    write_events(path, read_events(sample_dir / "gamma1_val_small.root", entry_stop=20))
    return path


def test_energies_and_covariances_change_and_directions_do_not(few, tmp_path, monkeypatch, capsys, call):
    monkeypatch.setattr("pflow.calibration.MIN_REPLACING", 15)  # photons enough to replace a curve
    monkeypatch.setattr("pflow.calibration.MIN_PHOTONS", 4)
    events, file = read_events(few), few
    calibrated, again = tmp_path / "calibrated", tmp_path / "again"
    for checkpoint, output in (("ild-g4-photon", calibrated), (calibrated, again)):
        assert call("calibrate", file, "--checkpoint", checkpoint, "-o", output) == 0
    said = "as before, fewer than 4 matched photons in each range of energy there: give more events, or a file of sin"
    assert said in capsys.readouterr().out
    model = load_model(calibrated)
    assert set(model.calibration.energy) == {"photon"}
    before, after = (reconstruct(events, weights).particles for weights in ("ild-g4-photon", model))
    assert not np.allclose(ak.flatten(before.energy), ak.flatten(after.energy), rtol=1e-3)
    directions = [ak.to_numpy(ak.flatten(of.pz / of.energy)) for of in (before, after)]
    np.testing.assert_allclose(*directions, atol=1e-6)
    assert not np.allclose(ak.to_numpy(ak.flatten(before.covariance)), ak.to_numpy(ak.flatten(after.covariance)))
    again = load_model(again)
    assert again.calibration == model.calibration
    # The second calibration changes nothing, and has no part in the model.
    on = {"files": [file.name], "uuids": [file_uuid(file)], "detectors": again.tokeniser.sample.calibrated_for}
    assert again.config["provenance"]["calibrated_on"] == [on]
    assert set(again.tokeniser.sample.calibrated_for) == {"ild_g4"}


def test_what_few_events_cannot_calibrate_stays_as_it_was(few, tmp_path, monkeypatch, capsys, call):
    monkeypatch.setattr("pflow.calibration.FEW_NAMED", 1.1)  # as where photons are taken for neutral hadrons
    assert call("calibrate", few, "--checkpoint", "ild-g4-photon", "-o", tmp_path / "out") == 0
    said = capsys.readouterr().out
    assert "uncertainties of photon: as before, fewer than 300 matched" in said
    assert "photons in each range of energy: 100% of the matched true photons are reconstructed as photons, oth" in said
    out = load_model(tmp_path / "out")
    assert out.calibration == load_model("ild-g4-photon").calibration
    assert "calibrated_on" not in out.config["provenance"]


def test_a_file_is_not_given_twice_and_a_training_file_is_said(few, model, save_model, tmp_path, monkeypatch, call):
    """Of an earlier training, too."""
    shutil.copy(few, tmp_path / "copy.root")
    made = {"train": [], "uuids": [], "began_with": {"train": ["few.root"]}}
    options = ["--checkpoint", save_model(model, tmp_path / "m.ckpt", made), "-o", tmp_path / "out"]
    with pytest.raises(InputError, match=r"copy\.root: is given twice, or a copy of another one"):
        call("calibrate", few, tmp_path / "copy.root", *options)
    monkeypatch.setattr("pflow.cli.models.progress_bar", lambda **_: 1 // 0)  # all is checked before
    with pytest.warns(ImplausibleWarning, match="few.root: the model was trained on"), pytest.raises(ZeroDivisionError):
        call("calibrate", few, *options)


def test_the_best_eos_threshold_is_kept(few, tmp_path, capsys, call):
    """Where decoding stops at once, no energy is found and none is fake."""
    options = ["--checkpoint", "ild-g4-photon", "--eos-threshold", 1e-30, 0.6, "-o", tmp_path / "out"]
    assert call("calibrate", few, *options) == 0
    keep = load_model("ild-g4-photon").reconstructor.decoding.existence_threshold
    said = f"eos_threshold 1e-30, existence_threshold {keep:g}: energy-weighted efficiency 0.0000 (reference: "
    assert said in (out := capsys.readouterr().out)
    assert "photon energies: not calibrated, fewer than 60 matched photons in each range of energy" in out
    assert [line[:17] for line in out.splitlines() if line.endswith("(kept)")] == ["eos_threshold 0.6"]
    assert load_model(tmp_path / "out").reconstructor.decoding.eos_threshold == 0.6


@pytest.fixture
def untrained(few, tmp_path, make_model, save_model):
    decoding = PointingDecodingConfig(max_particles=3, eos_threshold=0.999)
    tokeniser = Tokeniser.fit([read_events(few, entry_stop=5)], TokenConfig(readout=True))

    def write(refine_layers: int):
        network = PointingNetworkConfig(width=8, heads=1, hidden_width=4, feedforward=8, refine_layers=refine_layers)
        model = make_model(tokeniser, PointingReconstructor, network=network, decoding=decoding)
        return save_model(model, tmp_path / "untrained.ckpt")

    return write


def test_the_existence_threshold_is_chosen_where_there_is_a_refinement(few, tmp_path, capsys, untrained, call):
    options = ["--existence-threshold", 0.4, 0.99, "-o", tmp_path / "out"]
    with pytest.raises(ConfigError, match=r"--existence-threshold: .*untrained\.ckpt has no refinement"):
        call("calibrate", few, "--checkpoint", untrained(refine_layers=0), *options)
    assert call("calibrate", few, "--checkpoint", untrained(refine_layers=1), *options) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "energy-weighted efficiency" in line]
    assert [line.split(":")[0] for line in lines] == [
        f"eos_threshold 0.999, existence_threshold {p}" for p in (0.4, 0.99)
    ]
    assert "fraction 0.0000" in lines[1]  # no particle of a network with initial weights is that probable
    assert "fraction 0.0000" not in lines[0]
    score = [float(text.split()[0]) for text in re.findall(r"(?:efficiency|fraction) (.*?)[, ]", lines[0])]
    chosen = load_model(tmp_path / "out").reconstructor.decoding.existence_threshold
    assert chosen == (0.4 if score[0] > score[1] else 0.99)


def test_as_efficient_as_the_reference_where_asked(sample_dir, tmp_path, capsys, call):
    """A threshold that nearly nothing passes has the fewest fakes, and is not as efficient as Pandora."""
    options = ["--existence-threshold", 0.3, 0.9999, "--choose-by", "reference", "-o", tmp_path / "out"]
    assert call("calibrate", sample_dir / "gammasep_test_small.root", "--checkpoint", "ild-g4-photon", *options) == 0
    low, high = (float(line.split("efficiency ")[1].split()[0]) for line in capsys.readouterr().out.splitlines()[:2])
    assert low > high
    assert load_model(tmp_path / "out").reconstructor.decoding.existence_threshold == 0.3


@pytest.mark.filterwarnings("ignore:.*in the training sample of the model")
def test_files_of_another_detector_are_refused_unless_it_is_named(sample_dir, tmp_path, call):
    file, options = sample_dir / "cld_multi_test_small.root", ["--checkpoint", "ild-g4-photon", "-o", tmp_path / "out"]
    with pytest.raises(InputError, match="trained on detector 'ild_g4'"):
        call("calibrate", file, *options)
    assert call("calibrate", file, *options, "--detector", "cld") == 0


def test_entries_that_cannot_be_used_are_left_out(few, spoil, tmp_path, call):
    write_events(tmp_path / "bad.root", spoil(read_events(few), 3, "hits.energy", -1.0, of_all=True))
    words = [tmp_path / "bad.root", "--checkpoint", "ild-g4-photon", "-o", tmp_path / "out"]
    with pytest.raises(InputError, match=r"bad\.root, entry 3"):
        call("calibrate", *words)
    with pytest.warns(BadEntriesWarning, match="1 of 20 entries"):
        assert call("calibrate", *words, "--on-error", "skip") == 0


@pytest.fixture(scope="module")
def checkpoint(save_model, tmp_path_factory):
    return save_model(load_model("ild-g4-photon"), tmp_path_factory.mktemp("export") / "best.ckpt")


@pytest.mark.usefixtures("tiny_graphs")
def test_a_checkpoint_and_a_folder_of_weights_become_graphs(checkpoint, tmp_path, capsys, call):
    assert call("export", "--checkpoint", checkpoint, "-o", tmp_path / "model") == 0
    written = sorted(path.name for path in (tmp_path / "model").iterdir())
    assert written == ["encoder.onnx", "tokens.json"]
    text = json.loads((tmp_path / "model" / "tokens.json").read_text())
    assert text["run"]["checkpoint_sha256"] == load_model(checkpoint).digest
    output = capsys.readouterr().out
    assert all(str(tmp_path / "model" / name) in output for name in written)
    call("export", "--checkpoint", checkpoint, "-o", tmp_path / "weights", "--format", "weights")
    assert call("export", "--checkpoint", tmp_path / "weights", "-o", tmp_path / "of_weights") == 0
    text = json.loads((tmp_path / "of_weights" / "tokens.json").read_text())
    assert text["run"]["checkpoint_sha256"] == load_model(tmp_path / "weights").digest


@pytest.mark.usefixtures("tiny_graphs")
def test_the_detector_of_the_graphs_of_a_model_for_any_is_said(tmp_path, capsys, call):
    call("export", "--checkpoint", "general", "-o", tmp_path / "model")
    assert "graphs for detector 'ild_g4' alone: --detector names another one\n" in capsys.readouterr().out


def test_a_bad_folder_another_detector_and_a_missing_extra_are_errors(checkpoint, tmp_path, monkeypatch, call, capsys):
    with pytest.raises(ConfigError, match="nowhere does not exist"):
        call("export", "--checkpoint", tmp_path / "missing.ckpt", "-o", tmp_path / "nowhere" / "model")
    with pytest.raises(ConfigError, match=r"trained on detector 'ild_g4', from which 'cld' differs in b_field, .*calo"):
        call("export", "--checkpoint", checkpoint, "-o", tmp_path / "model", "--detector", "cld")
    with pytest.raises(ConfigError, match=r"--detector: graphs alone .* are for one detector; leave it out"):
        call("export", "--checkpoint", checkpoint, "-o", tmp_path / "w", "--format", "weights", "--detector", "ild_g4")
    monkeypatch.setitem(sys.modules, "pflow.export.pointing", None)  # its import fails
    assert main(["export", "--checkpoint", str(checkpoint), "-o", str(tmp_path / "model")]) == 1  # no option is wrong
    assert "for graphs for C++, is not installed: pip install 'pflow[export]'\n" in capsys.readouterr().err
