"""An architecture of one's own through the command line: fit, reconstruct, evaluate on a tiny file."""

import json
import sys
from unittest.mock import patch

import pytest
from torch import nn

import pflow.model
from pflow.checkpoint import load_model
from pflow.cli.main import main
from pflow.train.callbacks import read_history

TOY = '''
"""An architecture of one's own: each event is one photon, of a direction and an energy that are learned."""

import dataclasses

import torch
from torch import nn

from pflow.model.api import DecodingConfig, GeneratedParticles, Reconstructor


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToyConfig:
    scale: float = 1.0


class ToyReconstructor(Reconstructor):
    def __init__(self, inputs, *, network: ToyConfig = ToyConfig(), decoding: DecodingConfig = DecodingConfig()):
        super().__init__(inputs, decoding=decoding, network=network)
        self.scale = network.scale
        self.energy = nn.Linear(inputs.hit_features, 1)
        self.direction = nn.Parameter(torch.ones(3))

    def predict(self, batch):
        mean = batch.hits.features.mean(dim=1)  # [B, F]
        unit = nn.functional.normalize(self.direction, dim=0)
        return {"energy": self.scale * self.energy(mean), "direction": unit.expand(len(mean), 1, 3)}

    def training_step(self, batch):
        shape = batch.target.energy.shape
        of_event = self.predict(batch)
        prediction = {"energy": of_event["energy"].expand(shape), "direction": of_event["direction"].expand(*shape, 3)}
        error = ((prediction["energy"] - batch.target.energy) * batch.target.mask).square().mean()
        loss = error + (prediction["direction"] - batch.target.direction).square().mean()
        return {"energy": error, "total": loss}

    @torch.no_grad()
    def generate(self, batch, *, decoding=None):
        prediction = self.predict(batch)
        B = len(prediction["energy"])
        return GeneratedParticles(
            charge=torch.ones(B, 1, dtype=torch.long),
            pdg=torch.zeros(B, 1, dtype=torch.long),
            **prediction,
            score=torch.ones(B, 1),
            mask=torch.ones(B, 1, dtype=torch.bool),
            truncated=torch.zeros(B, dtype=torch.bool),
        )
'''

TOY_CONFIGURATION = """\
model:
  reconstructor:
    class_path: pflow.model.toy.ToyReconstructor
    init_args: {network: {scale: 0.5}}
data: {batch_size: 20}
trainer: {max_epochs: 1, accelerator: cpu, enable_progress_bar: false}
"""


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """Configuration of a third architecture: a folder of its own and a YAML file."""
    (tmp_path / "model" / "toy").mkdir(parents=True)
    (tmp_path / "model" / "toy" / "__init__.py").write_text(TOY)
    monkeypatch.setattr(pflow.model, "__path__", [*pflow.model.__path__, str(tmp_path / "model")])
    (tmp_path / "toy.yaml").write_text(TOY_CONFIGURATION)
    yield str(tmp_path / "toy.yaml")
    # The command line finds subclasses for its help, also in later tests.
    sys.modules.pop("pflow.model.toy").ToyReconstructor.__bases__ = (nn.Module,)
    monkeypatch.delattr(pflow.model, "toy", raising=False)


@pytest.mark.usefixtures("few_resamples")
def test_a_third_architecture_is_one_folder_and_one_configuration(toy, sample_dir, tmp_path):
    sample, run = str(sample_dir / "gamma1_val_small.root"), tmp_path / "run"
    data = [f"--data.train={sample}", f"--data.val={sample}", f"--output={run}"]
    with patch("pflow.train.callbacks.read_history", read_history):  # other fits of the tests draw nothing
        assert main(["fit", "--config", toy, *data]) == 0
    names = {path.name for path in run.rglob("*")}
    assert {"best.ckpt", "last.ckpt", "config.yaml", "metrics.csv", "training.png", "training.pdf"} <= names
    model = load_model(run / "best.ckpt")
    assert model.config["model"]["init_args"]["network"] == {"scale": 0.5}
    assert not model.tokeniser.config.readout
    reco = str(tmp_path / "reco.root")
    assert main(["reconstruct", sample, "--checkpoint", str(run / "best.ckpt"), "-o", reco, "-q"]) == 0
    assert main(["evaluate", reco, "--truth", sample, "-o", str(tmp_path / "evaluation"), "--no-plots", "-q"]) == 0
    assert json.loads((tmp_path / "evaluation" / "metrics.json").read_text())["n_events_read"] == 50
    data[-1] = f"--output={tmp_path / 'again'}"
    assert main(["fit", "--config", toy, *data, f"--start-from={run / 'best.ckpt'}"]) == 0
