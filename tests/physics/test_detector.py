import pytest

from pflow.config import builtin_names, from_plain, to_plain
from pflow.physics.detector import Detector, load_detector
from pflow.physics.geometry import Geometry

BUILTIN = builtin_names("detector")


def test_built_in_detectors_have_the_field_and_symmetry_of_their_design():
    expected = {"cld": (2.0, 12), "clic": (4.0, 12), "ild": (3.5, 4), "ild_g4": (3.5, None)}
    detectors = {name: load_detector(name) for name in BUILTIN}
    assert {name: (detector.b_field, detector.phi_symmetry) for name, detector in detectors.items()} == expected


@pytest.mark.parametrize("name", BUILTIN)
def test_built_in_detectors_are_complete(name):
    """They survive serialisation, have ECAL and HCAL barrel and endcap, a geometry, and no collection twice."""
    detector = load_detector(name)
    assert from_plain(Detector, to_plain(detector), "detector") == detector
    regions = {(calorimeter.kind, calorimeter.region) for calorimeter in detector.calorimeters if calorimeter.required}
    assert {("ecal", "barrel"), ("ecal", "endcap"), ("hcal", "barrel"), ("hcal", "endcap")} <= regions
    assert len(Geometry.of(detector).cell_size) == 1
    for kind in ("collections", "sim_collections"):
        names = [collection for calorimeter in detector.calorimeters for collection in getattr(calorimeter, kind)]
        assert len(names) == len(set(names))
