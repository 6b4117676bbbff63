import dataclasses
import json

import numpy as np
import pytest

from pflow.config import builtin_names, from_plain, to_plain
from pflow.errors import ConfigError
from pflow.physics.detector import MATERIALS, Detector, load_detector, matter_of_layers
from pflow.physics.geometry import Geometry


@pytest.mark.parametrize(
    ("material", "radiation", "interaction"),
    [  # cm, as the PDG's pages of each material state
        ("tungsten", 0.3504, 9.946),
        ("lead", 0.5612, 17.59),
        ("iron", 1.757, 16.77),
        ("copper", 1.436, 15.32),
        ("silicon", 9.370, 46.52),
        ("PbWO4", 0.8904, 20.27),
        ("BGO", 1.118, 22.32),
        ("polystyrene", 41.31, 77.07),
        ("uranium", 0.3166, 11.03),
    ],
)
def test_lengths_in_cm(material, radiation, interaction):
    ((thickness, *lengths),) = matter_of_layers(f"{material}:10", 1)
    assert thickness == 10.0
    assert [1 / length for length in lengths] == pytest.approx([radiation, interaction], rel=1e-3)


def test_materials_are_ordinary_matter_in_layers_of_several():
    layers = matter_of_layers("Tungsten:20x2.1+10x4.2,silicon:0.5", 28)  # no hits in the last two
    assert layers[[0, 19, 20, 29], 0].tolist() == pytest.approx([2.6, 2.6, 4.7, 4.7])
    assert layers[0, 1] == pytest.approx(2.1 / 3.504 + 0.5 / 93.7, rel=1e-3)
    assert len(matter_of_layers("lead:4", 25)) == 25
    np.testing.assert_array_equal(matter_of_layers("Pb:4,w:1", 3), matter_of_layers("lead:4,tungsten:1", 3))
    assert len(np.unique(matter_of_layers("steel:40x20", 39), axis=0)) == 1
    for name, (radiation, interaction, density) in MATERIALS.items():
        assert 5 < radiation < interaction < 250, name
        assert 1 < density < 20, name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("led:4", r"no material 'led'.*nearest matches: lead"),
        ("lead", r"expected CALORIMETER=MATERIAL:MM"),
        ("lead:4mm", r"expected CALORIMETER=MATERIAL:MM"),
        ("lead:-4", r"expected CALORIMETER=MATERIAL:MM"),
        ("lead:0", r"expected CALORIMETER=MATERIAL:MM"),
        ("lead:4+2", r"expected CALORIMETER=MATERIAL:MM"),
        ("lead:10x4", r"is of 10 layers, and hits are in 25"),
        ("lead:30x4,copper:25x1", r"materials are of 25 and of 30 layers"),
    ],
)
def test_what_is_no_absorber_is_said(text, message):
    with pytest.raises(ConfigError, match=message):
        matter_of_layers(text, 25)


BUILTIN = builtin_names("detector")


def test_built_in_detectors_have_their_field_and_symmetry():
    expected = {"cld": (2.0, 12), "clic": (4.0, 12), "ild": (3.5, 4), "ild_g4": (3.5, None)}
    detectors = {name: load_detector(name) for name in expected}
    assert {name: (detector.b_field, detector.phi_symmetry) for name, detector in detectors.items()} == expected


@pytest.mark.parametrize("name", BUILTIN)
def test_built_in_detectors_are_complete(name):
    """They survive serialisation, have ECAL and HCAL barrel and endcap, a geometry, and no collection twice."""
    detector = load_detector(name)
    parts = tuple(dataclasses.replace(part, hadron_scale=part.hadron_scale or 1.0) for part in detector.calorimeters)
    assert dataclasses.replace(detector, calorimeters=parts) == detector  # the scale of an ECAL has no meaning
    assert dataclasses.replace(detector, phi_symmetry=1).phi_symmetry == 1  # such a detector is not turned
    assert from_plain(Detector, to_plain(detector), "detector") == detector
    regions = {(calorimeter.kind, calorimeter.region) for calorimeter in detector.calorimeters if calorimeter.required}
    assert {("ecal", "barrel"), ("ecal", "endcap"), ("hcal", "barrel"), ("hcal", "endcap")} <= regions
    assert len(Geometry.of(detector).cell_size) == 1
    for kind in ("collections", "sim_collections"):
        names = [collection for calorimeter in detector.calorimeters for collection in getattr(calorimeter, kind)]
        assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"hadron_scale": 79.0}, r"calorimeters\[2\]: calorimeter 'hcal_barrel': hadron_scale"),
        ({"phase": 22.5}, "phase must be an angle in rad"),
        ({"sim_threshold": -1.0}, "sim_threshold must be an energy in GeV"),
        ({"sim_deep_scale": [20, -3.0]}, "sim_deep_scale must be a layer and a factor above 0"),
    ],
)
def test_a_value_that_is_refused_is_said_with_the_file(tmp_path, wrong, message):
    plain = to_plain(load_detector("cld"))  # with thresholds of 5e-05
    plain["calorimeters"][2] |= wrong
    (path := tmp_path / "mine.yaml").write_text(json.dumps(plain), encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"mine\.yaml: .*{message}"):
        load_detector(path)
