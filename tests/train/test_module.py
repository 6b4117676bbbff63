from __future__ import annotations

import pytest
import pytorch_lightning as pl

from pflow.cli.fit import main
from pflow.data.datamodule import ParticleFlowData
from pflow.errors import ConfigError
from pflow.train.module import ParticleFlow, network_arguments


def test_an_argument_that_does_not_exist_is_an_error_with_the_nearest_match():
    with pytest.raises(ConfigError, match=r"network has no option 'widht' .*width"):
        ParticleFlow(network={"widht": 32})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": 0.0}, "expected lr > 0"),
        ({"weight_decay": -1.0}, "weight_decay"),
        ({"warmup": 1.0}, "warmup"),
        ({"final_lr": 2.0}, "final_lr"),
        ({"schedule": "linear"}, "no schedule 'linear'"),
        ({"max_particles": 0}, "max_particles"),
    ],
)
def test_options_that_cannot_work_are_errors(options, message):
    with pytest.raises(ConfigError, match=message):
        ParticleFlow(**options)


def test_a_network_of_another_architecture_has_its_own_options_and_loss():
    module = ParticleFlow(
        network={"architecture": "pointing", "hidden": 8}, loss={"weights": {"incidence": 2.0}, "energy": "mse"}
    )
    assert module.network_arguments["hidden"] == 8
    assert "special" not in module.network_arguments
    assert module.loss_arguments == {"weights": {"incidence": 2.0}}


def test_options_of_other_architectures_may_be_there_with_their_defaults():
    given = {"architecture": "pointing", "special": "flags", "decoder": "vanilla"}
    assert network_arguments(given, "network") == network_arguments({"architecture": "pointing"}, "network")
    assert network_arguments({"cone": 0.3, "hidden": 48}, "network") == network_arguments(None, "network")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"architecture": "pointing", "special": "kind"},
            "network: 'special' is no option of the architecture 'pointing'",
        ),
        ({"cone": 0.5}, "network: 'cone' is no option of the architecture 'translation'"),
        ({"architecture": "pointing", "conne": 0.5}, r"network has no option 'conne' .*cone"),
        ({"architecture": "recurrent"}, "network: no architecture 'recurrent': expected one of translation, pointing"),
    ],
)
def test_options_that_an_architecture_does_not_have_are_errors(given, message):
    with pytest.raises(ConfigError, match=message):
        network_arguments(given, "network")


def test_another_data_module_is_an_error():
    module = ParticleFlow()
    module.trainer = pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    with pytest.raises(ConfigError, match="needs a ParticleFlowData"):
        _ = module.data


def test_several_devices_are_refused(small):
    data = ParticleFlowData(train=small["val"], val=small["val"])
    data.trainer = type("Trainer", (), {"world_size": 2})()
    with pytest.raises(ConfigError, match="one device"):
        data.setup("fit")


def test_a_cosine_needs_to_know_the_number_of_steps(tiny, small, tmp_path):
    data = [f"--data.train={small['val']}", f"--data.val={small['val']}", "--data.max_tokens=4000"]
    with pytest.raises(ConfigError, match=r"set trainer\.max_steps"):
        main(["fit", *tiny, *data, f"--output={tmp_path / 'run'}"])


def test_a_budget_of_tokens_trains_with_a_number_of_steps(tiny, small, tmp_path, capsys):
    data = [f"--data.train={small['val']}", f"--data.val={small['val']}", "--data.max_tokens=4000"]
    assert main(["fit", *tiny, *data, "--trainer.max_steps=12", f"--output={tmp_path / 'run'}"]) == 0
    assert "best model" in capsys.readouterr().out
