from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import uproot

from pflow.errors import InputError
from pflow.event import jagged
from pflow.event.events import Events, leave_out
from pflow.event.schema import make_hits
from pflow.io.edm4hep.podio import open_podio
from pflow.io.open import best_detector, best_layout, fitting_detectors, geometry_fits, open_events, read_events, sniff
from pflow.io.root import open_root
from pflow.physics.detector import load_detector


def layout_of(path, detector=None) -> str:
    with open_root(path) as directory:
        return best_layout(directory, str(path), detector)


def schema_of(path) -> str:
    with open_root(path) as directory:
        return sniff(directory, str(path))


def ecal_hits(**where: list[list[float]]) -> Events:
    """Hits of the CLD ECAL barrel at these x, or of its endcaps at these z."""
    ((axis, values),) = where.items()
    zeros, ones = ([[number] * len(event) for event in values] for number in (0, 1))
    position = dict.fromkeys("xyz", zeros) | {axis: values}
    subdetector = {"x": zeros, "z": ones}[axis]
    return Events(detector=load_detector("cld"), hits=make_hits(energy=ones, subdetector=subdetector, **position))


def shower(front: float, n_events: int = 6) -> list[list[float]]:
    """Hits from `front` on to 120 mm behind it, in several events."""
    return [list(np.linspace(front, front + 120.0, 30)) for _ in range(n_events)]


@pytest.mark.parametrize(("radius", "names"), [(2152.0, {"cld"}), (1502.0, {"clic"}), (1807.0, {"ild", "ild_g4"})])
def test_a_barrel_is_known_by_its_radius(radius, names):
    events = ecal_hits(x=shower(radius))
    fits = {detector for detector in ("cld", "clic", "ild", "ild_g4") if geometry_fits(events, load_detector(detector))}
    assert fits == names


CORNER = 1804.8 / np.cos(np.pi / 8)


@pytest.mark.parametrize(
    ("hits", "detector", "fits"),
    [
        ({"x": shower(CORNER + 2.0)}, "ild", True),  # corner of an octagon
        ({"z": shower(2414.0)}, "ild", True),
        ({"z": shower(2414.0)}, "cld", False),  # endcaps of another
        ({"z": [[-2310.0, 2310.0]] * 6}, "cld", True),  # both endcaps
        ({"z": [[2400.0] * 50]}, "cld", None),  # one late shower
        ({"z": [[2400.0] * 50] * 6}, "cld", False),  # late showers alone
        ({"x": [[], []]}, "cld", None),
        ({"x": [[*event, float("nan")] for event in shower(2152.0)]}, "cld", True),
        ({"x": [*shower(2152.0), [100.0]]}, "cld", True),  # a displaced hit
    ],
)
def test_geometry(hits, detector, fits):
    assert geometry_fits(ecal_hits(**hits), load_detector(detector)) is fits


def test_left_out_hits_do_not_change_the_geometry_match(sample_dir):
    events = read_events(sample_dir / "cld_zqq_small.edm4hep.root")
    energy = jagged.flat(events.hits.energy).copy()
    energy[::50] = -1.0
    events = replace(events, hits=jagged.replaced(events.hits, {"energy": energy}))
    usable, left_out = leave_out(events)
    assert left_out["hits"].mean() > 0.015
    assert geometry_fits(usable, events.detector) is True


@pytest.mark.parametrize("sim", [None, True])
def test_only_cld_fits_the_cld_file(cld_path, cld_sim_path, sim):
    matches = fitting_detectors(open_podio(cld_sim_path if sim else cld_path), sim=sim)
    assert [match.detector.name for match in matches if match.fits] == ["cld"]
    assert matches[0].detector.name == "cld"
    assert matches[0].reason == ""
    reasons = {match.detector.name: match.reason for match in matches}
    assert "do not lie where its ECAL is" in reasons["clic"]
    assert "no collection" in reasons["ild"]


def as_cld(content: dict[str, Any], *, radius: float) -> dict[str, Any]:
    """The small file with CLD's names and one ECAL hit at a radius."""
    renamed = {f"ECALBarrel.{key.split('.', 1)[1]}": values for key, values in content.items() if key.startswith("A2.")}
    renamed["ECALBarrel.position.x"] = [[radius], [radius]]
    for name in ("ECALEndcap", "HCALBarrel", "HCALEndcap"):
        renamed |= {f"{name}.{key.split('.', 1)[1]}": [[], []] for key in renamed if key.startswith("ECALBarrel.")}
    return renamed


def test_the_geometry_decides_between_detectors_with_the_same_names(podio, content, monkeypatch):
    """Where none or two fit, they are named."""
    assert best_detector(podio(as_cld(content, radius=1505.0))).name == "clic"
    with pytest.raises(InputError, match="no built-in detector fits") as caught:
        best_detector(podio(as_cld(content, radius=500.0)))
    assert all(f"{name}: " in str(caught.value) for name in ("cld", "clic", "ild", "ild_g4"))
    twin = replace(load_detector("cld"), name="twin")
    monkeypatch.setattr("pflow.io.open.builtin_names", lambda kind: ["cld", twin])
    named = podio(as_cld(content, radius=2155.0))
    named.parameters["detectorName"] = ("twin",)
    assert best_detector(named).name == "twin"
    with pytest.raises(InputError, match="fits the detectors cld and twin equally well"):
        best_detector(podio(as_cld(content, radius=2155.0)))


def test_entries_that_cannot_be_decoded_leave_the_geometry_unknown(write, damage, content):
    path = write(as_cld(content, radius=1505.0))
    damage(path, "ECALBarrel.position.x")
    assert all(match.geometry is None for match in fitting_detectors(open_podio(path)))


@pytest.mark.parametrize(("name", "detector"), [("gamma1_val", "ild_g4"), ("cld_multi_test", "cld")])
def test_the_detector_whose_ecal_has_the_hits(sample_dir, tmp_path, name, detector):
    path = tmp_path / "no_note.root"
    with uproot.open(sample_dir / f"{name}_small.root") as file, uproot.recreate(path) as copy:
        branches = file["events"].arrays(entry_stop=20)
        copy.mktree("events", {key: branches[key].type.content for key in branches.fields})
        copy["events"].extend({key: branches[key] for key in branches.fields})
    with open_events(path) as file:
        assert file.detector.name == detector
        assert len(file.read(0, 5)) == 5


def test_a_known_detector_decides_the_layout(sample_dir, tmp_path):
    assert layout_of(sample_dir / "zqq_test_small.root", load_detector("cld")) == "cld_g4"
    assert best_layout(None, "not_read.root", load_detector("clic")) == "g4"
    path = tmp_path / "empty.root"
    with uproot.recreate(path) as file:
        file.mktree("events", {f"calo_hit.{key}": "var * float32" for key in ("energy", "x", "y", "z")})
    assert layout_of(path) == "g4"


@pytest.mark.parametrize(
    ("part", "layout", "schema", "options"),
    [
        ("Tracks", "new", "edm4hep", {}),
        ("Tracks", "old", "edm4hep", {}),
        ("Tracks", "rntuple", "edm4hep", {}),
        ("A1.", "new", "edm4hep", {"ids": {}}),
        ("MCParticles.", "new", "edm4hep", {"ids": {}}),
    ],
)
def test_edm4hep_is_known_by_podio_s_metadata_or_its_collections(write, content, part, layout, schema, options):
    some = {key: values for key, values in content.items() if key.startswith(part)}
    assert schema_of(write(some, layout, **options)) == schema


def test_a_tree_of_something_else_says_what_was_looked_for(tmp_path):
    path = tmp_path / "a.root"
    with uproot.recreate(path) as file:
        file.mktree("events", {"calohit.energy": "var * float32", "y": "int32"})
    with pytest.raises(InputError, match=r"holds neither EDM4hep .* nor .* flat layout .*nearest matches: calohit"):
        schema_of(path)
