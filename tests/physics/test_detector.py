import pytest

from pflow.config import builtin_names, from_plain, to_plain
from pflow.errors import ConfigError
from pflow.physics.detector import Detector, load_detector
from pflow.physics.geometry import Geometry

BUILTIN = builtin_names("detector")


@pytest.fixture
def plain():
    return to_plain(load_detector("cld"))


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


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("calorimeters", [], "has no calorimeters"),
        ("ecal_inner_radius", 0.0, "must be a length in mm above 0"),
        ("ecal_inner_z", -1, "must be a length in mm above 0"),
        ("phi_symmetry", 0, "must be at least 1"),
    ],
)
def test_a_value_that_cannot_be_is_named(plain, field, value, expected):
    with pytest.raises(ConfigError, match=expected):
        from_plain(Detector, plain | {field: value}, "detector")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "ecal_barrel"}, "names a calorimeter twice"),
        ({"kind": "tracker"}, "kind 'tracker' is not one of"),
        ({"region": "forward"}, "region 'forward' is not one of"),
    ],
)
def test_an_invalid_calorimeter_is_refused(plain, change, message):
    plain["calorimeters"][1] |= change
    with pytest.raises(ConfigError, match=message):
        from_plain(Detector, plain, "detector")


@pytest.mark.parametrize(
    ("field", "value"), [("inverse_pt", [1e-5]), ("angle", [1e-3, -1.0]), ("impact", []), ("sides", 2)]
)
def test_invalid_truth_tracks_are_refused(plain, field, value):
    plain["truth_tracks"][field] = value
    with pytest.raises(ConfigError, match=f"truth_tracks: {field}"):
        from_plain(Detector, plain, "detector")
