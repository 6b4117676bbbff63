from dataclasses import replace

import pytest
import yaml

from pflow.config import builtin_names, from_plain, to_plain
from pflow.errors import ConfigError
from pflow.physics.detector import Detector, load_detector

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
    """They survive serialisation, have ECAL and HCAL barrel and endcap, and read no collection twice."""
    detector = load_detector(name)
    assert from_plain(Detector, to_plain(detector), "detector") == detector
    regions = {(calorimeter.kind, calorimeter.region) for calorimeter in detector.calorimeters if calorimeter.required}
    assert {("ecal", "barrel"), ("ecal", "endcap"), ("hcal", "barrel"), ("hcal", "endcap")} <= regions
    for kind in ("collections", "sim_collections"):
        names = [collection for calorimeter in detector.calorimeters for collection in getattr(calorimeter, kind)]
        assert len(names) == len(set(names))


def test_a_detector_from_a_file(tmp_path, plain):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(plain | {"name": "mine"}))
    assert load_detector(path) == replace(load_detector("cld"), name="mine")


def test_an_unknown_name_gives_the_nearest():
    with pytest.raises(ConfigError, match=r"no detector file 'cldd'.*nearest matches: cld"):
        load_detector("cldd")


def test_a_missing_field_is_named(plain):
    del plain["b_field"]
    with pytest.raises(ConfigError, match="field 'b_field' is missing"):
        from_plain(Detector, plain, "detector")


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("bfield", 1.0, r"unknown field 'bfield' \(nearest matches: b_field"),
        ("calorimeters", [], "has no calorimeters"),
        ("ecal_inner_radius", 0.0, "must be a length in mm above 0"),
        ("ecal_inner_z", -1, "must be a length in mm above 0"),
        ("phi_symmetry", 0, "must be at least 1"),
    ],
)
def test_an_unknown_field_or_a_value_of_the_wrong_type_is_named(plain, field, value, expected):
    with pytest.raises(ConfigError, match=expected):
        from_plain(Detector, plain | {field: value}, "detector")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colections": []}, r"calorimeters\[1\]: unknown field 'colections'.*collections"),
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
