from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import uproot

from pflow.errors import InputError
from pflow.event import jagged
from pflow.event.events import Events, leave_out
from pflow.event.schema import make_hits
from pflow.io.detect import best_detector, detector_matches, fitting_detectors, geometry_fits
from pflow.io.edm4hep.podio import open_podio
from pflow.io.flat import FlatReader, write_events
from pflow.io.open import best_layout, open_events, read_events, sniff
from pflow.io.root import open_root
from pflow.physics.detector import load_detector


def layout_of(path, detector=None) -> str:
    with open_root(path) as directory:
        return best_layout(directory, str(path), detector)


def schema_of(path) -> str:
    with open_root(path) as directory:
        return sniff(directory, str(path))


def flat(path, **options) -> FlatReader:
    return FlatReader(open_root(path), path, **options)


def ecal_hits(*, radius: list[list[float]] | None = None, z: list[list[float]] | None = None) -> Events:
    """Hits of the CLD ECAL barrel at these radii, or of its endcaps at these |z|."""
    barrel = radius is not None
    values = radius if barrel else z
    zeros = [[0.0] * len(event) for event in values]
    return Events(
        detector=load_detector("cld"),
        hits=make_hits(
            energy=[[1.0] * len(event) for event in values],
            x=values if barrel else zeros,
            y=zeros,
            z=zeros if barrel else values,
            subdetector=[[0 if barrel else 1] * len(event) for event in values],
        ),
    )


def shower(front: float, n_events: int = 6) -> list[list[float]]:
    """Hits from `front` on to 120 mm behind it, in several events."""
    return [list(np.linspace(front, front + 120.0, 30)) for _ in range(n_events)]


@pytest.mark.parametrize(("name", "radius"), [("cld", 2152.0), ("clic", 1502.0), ("ild", 1807.0), ("ild_g4", 1807.0)])
def test_a_barrel_is_known_by_its_radius(name, radius):
    events = ecal_hits(radius=shower(radius))
    fits = {detector for detector in ("cld", "clic", "ild", "ild_g4") if geometry_fits(events, load_detector(detector))}
    assert fits == ({"ild", "ild_g4"} if name.startswith("ild") else {name})


CORNER = 1804.8 / np.cos(np.pi / 8)


@pytest.mark.parametrize(
    ("hits", "detector", "fits"),
    [
        ({"radius": shower(CORNER + 2.0)}, "ild", True),  # corner of an octagon
        ({"z": shower(2414.0)}, "ild", True),
        ({"z": shower(2414.0)}, "cld", False),  # endcaps of another
        ({"z": [[-2310.0, 2310.0]] * 6}, "cld", True),  # both endcaps
        ({"z": [[2400.0] * 50]}, "cld", None),  # one late shower
        ({"z": [[2400.0] * 50] * 6}, "cld", False),  # late showers alone
        ({"radius": [[], []]}, "cld", None),
        ({"radius": [[*event, float("nan")] for event in shower(2152.0)]}, "cld", True),
        ({"radius": [*shower(2152.0), [100.0]]}, "cld", True),  # a displaced hit
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
    file = open_podio(cld_sim_path if sim else cld_path)
    matches = fitting_detectors(file, sim=sim)
    file.close()
    assert [match.detector.name for match in matches if match.fits] == ["cld"]
    assert matches[0].detector.name == "cld"
    assert matches[0].reason == ""
    reasons = {match.detector.name: match.reason for match in matches}
    assert "do not lie where its ECAL is" in reasons["clic"]
    assert "no collection" in reasons["ild"]


def test_a_flat_file_is_matched_by_geometry(sample_dir):
    reader = flat(sample_dir / "zqq_test_small.root")
    matches = detector_matches(reader)
    reader.close()
    assert matches[0].detector.name == "ild_g4"
    assert {match.detector.name for match in matches if match.fits} == {"ild", "ild_g4"}


def as_cld(content: dict[str, Any], *, radius: float) -> dict[str, Any]:
    """The small file with CLD's names and one ECAL hit at a radius."""
    renamed = {f"ECALBarrel.{key.split('.', 1)[1]}": values for key, values in content.items() if key.startswith("A2.")}
    renamed["ECALBarrel.position.x"] = [[radius], [radius]]
    for name in ("ECALEndcap", "HCALBarrel", "HCALEndcap"):
        renamed |= {f"{name}.{key.split('.', 1)[1]}": [[], []] for key in renamed if key.startswith("ECALBarrel.")}
    return renamed


def test_the_geometry_decides_between_detectors_with_the_same_names(write, content):
    file = open_podio(write(as_cld(content, radius=1505.0)))
    assert best_detector(file).name == "clic"
    file.close()


def test_a_file_that_fits_no_detector_names_the_reason_for_each(write, content):
    file = open_podio(write(as_cld(content, radius=500.0)))
    with pytest.raises(InputError, match="none of the built-in detectors fits") as caught:
        best_detector(file)
    for name in ("cld", "clic", "ild", "ild_g4"):
        assert f"{name}: " in str(caught.value)
    file.close()


def test_a_file_that_fits_two_detectors_equally_is_refused(write, content, monkeypatch):
    twin = replace(load_detector("cld"), name="twin")
    monkeypatch.setattr("pflow.io.detect.builtin_names", lambda kind: ["cld", twin])
    file = open_podio(write(as_cld(content, radius=2155.0)))
    with pytest.raises(InputError, match="fits the detectors cld and twin equally well"):
        best_detector(file)
    file.close()


def test_entries_that_cannot_be_decoded_leave_the_geometry_unknown(write, damage, content):
    path = write(as_cld(content, radius=1505.0))
    damage(path, "ECALBarrel.position.x")
    file = open_podio(path)
    assert all(match.geometry is None for match in fitting_detectors(file))
    file.close()


@pytest.mark.parametrize(
    ("name", "detector"), [("gamma1_val", "ild_g4"), ("cld_multi_test", "cld"), ("cld_multi_train", "cld")]
)
def test_the_detector_whose_ecal_has_the_hits(sample_dir, tmp_path, name, detector):
    """Without the note that names it."""
    path = tmp_path / "no_note.root"
    with uproot.open(sample_dir / f"{name}_small.root") as file, uproot.recreate(path) as copy:
        branches = file["events"].arrays(entry_stop=20)
        copy.mktree("events", {key: branches[key].type.content for key in branches.fields})
        copy["events"].extend({key: branches[key] for key in branches.fields})
    with open_events(path) as file:
        assert file.detector.name == detector
        assert len(file.read(0, 5)) == 5


def test_a_known_detector_decides_alone(sample_dir):
    assert layout_of(sample_dir / "zqq_test_small.root", load_detector("cld")) == "cld_g4"
    assert best_layout(None, "not_read.root", load_detector("clic")) == "g4"


def test_files_that_pflow_wrote_hold_their_detector(sample_dir, tmp_path):
    with open_events(sample_dir / "cld_multi_test_small.root") as file:
        events: Events = file.read(0, 3)
    write_events(tmp_path / "out.root", [events])
    assert layout_of(tmp_path / "out.root") == "g4"
    with open_events(tmp_path / "out.root") as file:
        assert file.detector.name == "cld"


def test_an_empty_file_gets_the_default_layout(tmp_path):
    path = tmp_path / "empty.root"
    with uproot.recreate(path) as file:
        file.mktree("events", {f"calo_hit.{key}": "var * float32" for key in ("energy", "x", "y", "z")})
    assert layout_of(path) == "g4"


@pytest.mark.parametrize(("layout", "schema"), [("new", "edm4hep"), ("old", "edm4hep"), ("rntuple", "edm4hep-rntuple")])
def test_edm4hep_is_known_by_podio_s_metadata(write, content, layout, schema):
    only_hits = {key: values for key, values in content.items() if key.startswith("Tracks")}
    assert schema_of(write(only_hits, layout)) == schema


@pytest.mark.parametrize("part", ["A1", "MCParticles"])
def test_edm4hep_is_known_by_its_collections(write, content, part):
    some = {key: values for key, values in content.items() if key.startswith(f"{part}.")}
    assert schema_of(write(some, ids={})) == "edm4hep"


def test_a_tree_of_something_else_says_what_was_looked_for(tmp_path):
    path = tmp_path / "a.root"
    with uproot.recreate(path) as file:
        file.mktree("events", {"calohit.energy": "var * float32", "y": "int32"})
    with pytest.raises(InputError, match=r"holds neither EDM4hep .* nor .* flat layout .*nearest matches: calohit"):
        schema_of(path)
