import pytest

from pflow.config import builtin_names, from_plain, to_plain
from pflow.errors import ConfigError
from pflow.physics.detector import Calorimeter, Detector, load_detector
from pflow.physics.geometry import Geometry

BUILTIN = builtin_names("detector")


def test_built_in_detectors_have_their_field_and_symmetry():
    expected = {"cld": (2.0, 12), "clic": (4.0, 12), "ild": (3.5, 4), "ild_g4": (3.5, None)}
    detectors = {name: load_detector(name) for name in expected}
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
    ("options", "said"),
    [
        ({"kind": "hcal", "hadron_scale": 0.0}, "hadron_scale must be from 0.3 to 3 .*, found 0.0"),
        ({"kind": "hcal", "hadron_scale": 79.0}, "hadron_scale must be from 0.3 to 3 .*, found 79.0"),
        ({"kind": "hcal", "hadron_scale": float("inf")}, "hadron_scale must be from 0.3 to 3 .*, found inf"),
        ({"kind": "ecal", "electron_scale": 5.0}, "electron_scale must be from 0.3 to 3, found 5.0"),
        ({"kind": "hcal", "electron_scale": 1.1}, "electron_scale is for an ECAL, not for kind 'hcal'"),
        ({"kind": "ecal", "hadron_scale": 0.8}, "hadron_scale is for an HCAL, not for kind 'ecal'"),
    ],
)
def test_an_impossible_scale_of_hadrons_is_refused(options, said):
    with pytest.raises(ConfigError, match=f"calorimeter 'some': {said}"):
        Calorimeter(name="some", region="barrel", **options)
