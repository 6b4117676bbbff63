import dataclasses
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest

from pflow.errors import ConfigError
from pflow.model.api import DecodingConfig, ModelInputs, build_reconstructor, describe, reconstructor_class
from pflow.model.pointing import PointingReconstructor
from pflow.model.translation import TranslationReconstructor
from pflow.train.module import ParticleFlow

POINTING = "pflow.model.pointing.PointingReconstructor"
TRANSLATION = "pflow.model.translation.TranslationReconstructor"
SMALL = {"width": 16, "heads": 2}
INPUTS = ModelInputs(
    **{"n_charge": 3, "n_pdg": 4, "hit_features": 4, "n_subdetectors": 2, "energy_mean": 1.0, "energy_std": 0.5},
    **{"masses": (0.0, 0.1, 0.9, 0.5), "charged": (False, True, False, True)},
)


@pytest.mark.parametrize(("path", "kind"), [(POINTING, PointingReconstructor), (TRANSLATION, TranslationReconstructor)])
def test_a_reconstructor_is_built_from_its_description(path, kind):
    options = {"network": SMALL, "decoding": {"max_particles": 7}}
    reconstructor = build_reconstructor({"class_path": path, "init_args": options}, INPUTS)
    assert type(reconstructor) is kind
    assert reconstructor.inputs == INPUTS
    described = describe(reconstructor)
    assert described["class_path"] == path
    assert described["init_args"]["network"]["width"] == 16
    assert described["init_args"]["decoding"]["max_particles"] == 7
    again = build_reconstructor(described, INPUTS)
    assert describe(again) == described
    assert again.state_dict().keys() == reconstructor.state_dict().keys()
    again.decoding = dataclasses.replace(again.decoding, eos_threshold=0.9)  # as calibrated since
    assert describe(again)["init_args"]["decoding"]["eos_threshold"] == 0.9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"network": {"widht": 8}}, r"network: .*'widht' \(nearest matches: width"),
        ({"netwrok": {}}, r"'netwrok' \(nearest matches: network"),
        ({"network": {"width": "8"}}, "'width' must be a whole number"),
        ({"network": {"width": 0}}, r"width: 0 is not in \[1, 65536\]"),
        ({"decoding": {"max_particles": 0}}, r"max_particles: 0 is not in \[1, 16384\]"),
    ],
)
def test_a_description_that_makes_no_model_is_an_error(options, message):
    with pytest.raises(ValueError, match=message):
        build_reconstructor({"class_path": POINTING, "init_args": options}, INPUTS)
    with pytest.raises(ValueError, match="expected class_path and init_args"):
        build_reconstructor({"class_path": POINTING, "arguments": options}, INPUTS)


@pytest.mark.parametrize("wrong", [True, "0.5"])
def test_a_threshold_is_a_number(wrong):
    with pytest.raises(ValueError, match=rf"eos_threshold: {wrong!r} is not a number"):
        DecodingConfig(eos_threshold=wrong)


def test_an_installed_architecture_is_known_as_declared_and_by_the_package_that_exports_it(monkeypatch):
    own = type("Own", (PointingReconstructor,), {"__module__": "json.decoder"})
    entry = EntryPoint("own", "json.decoder:Own", "pflow.reconstructors")
    monkeypatch.setattr("json.Own", own, raising=False)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [entry] if group == entry.group else [])
    monkeypatch.setattr(EntryPoint, "load", lambda _: own)
    assert describe(own(INPUTS))["class_path"] == "json.Own"
    assert reconstructor_class("json.Own") is reconstructor_class("json.decoder.Own") is own


def test_an_architecture_that_no_checkpoint_could_name_is_refused_before_the_training():
    own = type("Own", (PointingReconstructor,), {"__module__": "__main__"})
    trainer = SimpleNamespace(state=SimpleNamespace(fn="fit"))
    module = SimpleNamespace(_trainer=trainer, trainer=trainer, make_reconstructor=own)
    with pytest.raises(ConfigError, match=r"no Reconstructor '__main__\.Own' below pflow\.model, and none that an"):
        ParticleFlow._make(module, SimpleNamespace(model_inputs=dataclasses.asdict(INPUTS)))


@pytest.mark.parametrize(
    "path",
    [
        *("os.system", "subprocess.Popen", "pflow.train.module.ParticleFlow", "pflow.model.."),
        *("pflow.model.other.Model", "pflow.model.pointing.Other", "pflow.model.api.ModelInputs"),
    ],
)
def test_a_class_that_is_no_reconstructor_is_an_error(path):
    with pytest.raises(ValueError, match=r"there is no Reconstructor .* below pflow\.model, and none that an"):
        reconstructor_class(path)


@pytest.mark.parametrize("path", [POINTING, TRANSLATION])
def test_no_target_in_training_and_decoding_in_training_are_errors(make_batch, path):
    reconstructor = build_reconstructor({"class_path": path, "init_args": {"network": SMALL}}, INPUTS)
    with pytest.raises(ValueError, match="target: the batch has none"):
        reconstructor.training_step(make_batch([2]))
    with pytest.raises(ValueError, match="training mode"):
        reconstructor.train().generate(make_batch([2]))
