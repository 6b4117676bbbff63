import numpy as np
import pytest

from pflow.io.draft.measure import find_layer_bits, measure_field
from pflow.io.edm4hep.podio import open_podio
from pflow.physics.detector import load_detector


@pytest.fixture(scope="module")
def stated(cld_sim_path):
    """Field that a file of simulated hits tells whose metadata hold these parameters."""
    file = open_podio(cld_sim_path)

    def measure(parameters, sim_tracker_hits=()):
        file.parameters = parameters
        return measure_field(file, load_detector("cld"), sim_tracker_hits, 3)

    yield measure
    file.close()


@pytest.mark.parametrize("name", ["BField", "b_field", "MagneticField", "detector.solenoid_field_z"])
def test_a_parameter_gives_the_field_and_others_do_not(stated, name):
    ((found, source),) = stated({name: ("-3.5",)})
    assert (found.b_field, found.uncertainty) == (3.5, 0.0)
    assert source == f"parameter '{name}' of the file's metadata"
    for others in ({name: ("3500",)}, {name: ("strong",)}, {name: ("1", "2")}, {"field.stepper": ("3",)}, {}):
        assert stated(others) == []


def test_simulated_tracker_hits_give_the_field_behind_a_stated_one(stated):
    layers = ("VertexBarrelCollection", "InnerTrackerBarrelCollection", "OuterTrackerBarrelCollection")
    ((found, _),) = stated({}, layers)
    assert found.b_field == pytest.approx(2.0, rel=0.01)
    assert 0 < found.uncertainty < 0.02
    assert [bool(estimate.uncertainty) for estimate, _ in stated({"BField": ("2.0",)}, layers)] == [False, True]


@pytest.mark.parametrize(("offset", "width"), [(0, 8), (19, 9), (40, 8)])
def test_the_bits_of_the_layer_are_found_by_the_layers(offset, width):
    rng = np.random.default_rng(offset)
    layer, others = rng.integers(0, 40, 500), rng.integers(0, 2**62, 500)
    cells = others & ~((2**width - 1) << offset) | layer << offset
    assert find_layer_bits(cells.astype(np.uint64), layer) == (offset, 8)


def test_bits_that_do_not_follow_the_layers_are_rejected():
    rng = np.random.default_rng(0)
    assert find_layer_bits(rng.integers(0, 2**40, 300).astype(np.uint64), rng.integers(0, 20, 300)) is None
    assert find_layer_bits(np.arange(3, dtype=np.uint64), np.arange(3)) is None
    assert find_layer_bits(np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=int)) is None
