import pytest

from pflow.io.draft.measure import measure_field
from pflow.io.edm4hep.podio import open_podio
from pflow.physics.detector import load_detector


@pytest.fixture(scope="module")
def stated(cld_sim_path):
    """Field that a file of simulated hits tells whose metadata hold these parameters."""
    file = open_podio(cld_sim_path)

    def measure(parameters):
        file.parameters = parameters
        return measure_field(file, load_detector("cld"), 3)

    yield measure
    file.close()


@pytest.mark.parametrize("name", ["BField", "b_field", "MagneticField", "detector.solenoid_field_z"])
def test_a_parameter_gives_the_field_and_others_do_not(stated, name):
    assert stated({name: ("-3.5",)}) == [(3.5, 0.0, f"parameter '{name}' of the file's metadata")]
    for others in ({name: ("3500",)}, {name: ("strong",)}, {name: ("1", "2")}, {"field.stepper": ("3",)}, {}):
        assert stated(others) == []
