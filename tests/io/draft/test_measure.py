import pytest

from pflow.io.draft.measure import measure_field
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
def test_a_parameter_gives_the_field(stated, name):
    ((found, source),) = stated({name: ("-3.5",)})
    assert (found.b_field, found.uncertainty) == (3.5, 0.0)
    assert source == f"parameter '{name}' of the file's metadata"


@pytest.mark.parametrize(
    "parameters",
    [{"BField": ("3500",)}, {"BField": ("strong",)}, {"BField": ("1", "2")}, {"field.stepper": ("3",)}, {}],
)
def test_other_parameters_do_not(stated, parameters):
    assert stated(parameters) == []


def test_simulated_tracker_hits_give_the_field(stated):
    layers = ("VertexBarrelCollection", "InnerTrackerBarrelCollection", "OuterTrackerBarrelCollection")
    ((found, _),) = stated({}, layers)
    assert found.b_field == pytest.approx(2.0, rel=0.01)
    assert 0 < found.uncertainty < 0.02


def test_a_stated_field_goes_first(stated):
    estimates = stated({"BField": ("2.0",)}, ("VertexBarrelCollection", "OuterTrackerBarrelCollection"))
    assert [bool(estimate.uncertainty) for estimate, _ in estimates] == [False, True]
