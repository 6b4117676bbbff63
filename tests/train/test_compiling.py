"""Training steps of the pointing network compiled by torch."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.utils import counters

from pflow.checkpoint.load import load_model
from pflow.data.batch import Target
from pflow.data.collate import collate
from pflow.io.open import read_events
from pflow.model.api import TrainingOutput
from pflow.model.pointing import PointingNetworkConfig, PointingReconstructor, PointingTrainingConfig
from pflow.model.pointing.geometry import make_scene
from pflow.model.pointing.pairs import Pairs, select_pairs
from pflow.train.compiling import compiled_step

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # by torch

SMALL = {"width": 24, "heads": 2, "feedforward": 32, "encoder_layers": 1, "decoder_layers": 1, "hidden_width": 16}
REFINED = {"refine_layers": 1, "pairwise_messages": True, "refine_delta_theta_phi_features": True}
ROWS = ((0, 1, 2), (3, 4, 5, 6), (7, 8), (9, 10, 11, 12, 13))
"""Batches of other numbers of events, tokens, hits, tracks and particles; in the first some are equal."""


@pytest.fixture(scope="module")
def batches(sample_dir):
    events = read_events(sample_dir / "multi_test_small.root", entry_stop=14)
    tokens = load_model("ild-g4-general").tokeniser.encode(events, truth=True)
    return [collate(tokens, rows) for rows in ROWS]


@pytest.fixture
def reconstructor(request):
    torch.compiler.reset()
    counters.clear()
    torch.manual_seed(3)
    inputs = load_model("ild-g4-general").reconstructor.inputs
    training = PointingTrainingConfig(scheduled_sampling_prob=0.0)
    network = PointingNetworkConfig(**SMALL, **request.param)
    yield PointingReconstructor(inputs, network=network, training=training).train()
    torch.compiler.reset()


def total_of(step, batch, reconstructor):
    """The loss and the largest gradient of each parameter."""
    torch.manual_seed(5)
    reconstructor.zero_grad()
    total = step(batch).losses["total"]
    total.backward()
    return total.detach(), [p.grad.abs().max() for p in reconstructor.parameters() if p.grad is not None]


def check(reconstructor, batches, backend, rtol):
    step = compiled_step(reconstructor, backend=backend)
    graphs = []
    for batch in batches:
        (total, gradients), (expected, others) = (
            total_of(one, batch, reconstructor) for one in (step, reconstructor.training_step)
        )
        torch.testing.assert_close(total, expected, rtol=rtol, atol=rtol)
        torch.testing.assert_close(gradients, others, rtol=100 * rtol, atol=100 * rtol)
        graphs.append(counters["stats"]["unique_graphs"])
    return graphs


class Near(torch.nn.Module):
    """A training step of nothing but pairs."""

    def __init__(self, inputs):
        super().__init__()
        self.n_subdetectors = inputs.n_subdetectors
        self.weight = torch.nn.Parameter(torch.tensor(0.5))

    def before_compiling(self):
        pass

    def training_step(self, batch):
        scene = make_scene(batch, n_subdetectors=self.n_subdetectors)
        seed = torch.zeros_like(batch.target.pdg)
        unassigned = torch.ones_like(torch.cat([batch.target.hit_fraction, batch.target.track_fraction], dim=-1))
        pairs = Pairs.where(select_pairs(scene, seed, unassigned, batch.target.mask, min_cosine=0.9))
        energy = pairs.particle_sums(self.weight * pairs.item_values(scene.item_energy), seed.numel())
        losses = {"total": energy.square().mean()}
        target = batch.target
        parts = (target.charge, target.pdg, target.energy, target.direction, target.mask)
        return TrainingOutput(losses, {}, Target(*parts, target.hit_fraction, target.track_fraction))


def test_pairs_and_lengths_make_no_more_graphs(batches):
    torch.compiler.reset()
    counters.clear()
    assert check(Near(load_model("ild-g4-general").reconstructor.inputs), batches, "eager", 1e-5) == [1] * len(ROWS)
    assert not counters["graph_break"]


@pytest.mark.slow
@pytest.mark.parametrize("reconstructor", [{"delta_theta_phi_features": True}], indirect=True)
def test_one_set_of_graphs_for_all_lengths_backward_too(reconstructor, batches):
    graphs = check(reconstructor, batches, "aot_eager", 1e-4)
    assert graphs[0] == graphs[-1]
    assert all("Tensor.item()" in reason for reason in counters["graph_break"])  # whether it samples its own particles


@pytest.mark.slow
@pytest.mark.parametrize("reconstructor", [REFINED], indirect=True)
def test_a_refinement_leaves_decoding_and_matching_out(reconstructor, batches):
    graphs = check(reconstructor, batches, "eager", 1e-4)
    assert graphs[1] == graphs[-1]
