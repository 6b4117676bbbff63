import dataclasses

import numpy as np
import pytest

from pflow.event.closure import TrackDeposits
from pflow.io.draft_measure import _electron_scales, measure_field
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


@pytest.mark.parametrize("scale", [0.5, 0.8, 1.0, 1.4])
def test_electrons_give_the_scale_of_the_ecal_and_hadrons_none(scale):
    rng = np.random.default_rng(1)
    n_electrons, n = 60, 110
    momentum = rng.uniform(3.0, 40.0, n)
    in_ecal = (
        np.where(np.arange(n) < n_electrons, rng.normal(1.0, 0.06, n), rng.normal(0.55, 0.18, n)) * momentum / scale
    )
    columns = dict.fromkeys((field.name for field in dataclasses.fields(TrackDeposits)), np.zeros(n))
    columns |= {
        "momentum": momentum,
        "narrow": np.stack([np.zeros(n), in_ecal], axis=1),
        "around": np.zeros((n, 2)),
        "separation": np.full(n, np.inf),
    }
    entries = TrackDeposits(**columns)
    found = _electron_scales(entries)
    assert len(found) == pytest.approx(n_electrons, abs=10)
    assert np.median(found) == pytest.approx(scale, rel=0.03)
    only_hadrons = {name: values[n_electrons:] for name, values in vars(entries).items()}
    assert len(_electron_scales(TrackDeposits(**only_hadrons))) == 0
    crowded = TrackDeposits(**vars(entries) | {"separation": np.zeros(n)})
    assert len(_electron_scales(crowded)) == 0
