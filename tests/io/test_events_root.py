import dataclasses
from itertools import pairwise

import awkward as ak
import numpy as np
import pytest
import uproot

from pflow.errors import ConfigError
from pflow.event.events import Events, Flag
from pflow.event.schema import make_hits, make_links, make_particles, make_tracker_hits, make_tracks, make_truth
from pflow.io.events_root import write_events
from pflow.io.flat import FlatReader
from pflow.io.root import open_root
from pflow.physics.detector import load_detector


def flat(path, **options) -> FlatReader:
    return FlatReader(open_root(path), path, **options)


NAN = float("nan")


TOLERANCE = {"weight": 1e-6, "phi": 3e-7}
"""Reading normalises shares; a track's phi may be stored or computed: arctan2 depends on the machine."""


def read_all(path):
    reader = flat(path)
    try:
        return reader.read(0, reader.num_entries)
    finally:
        reader.close()


def by_hand():
    """Three events, the second empty, with every part and every oddity that an `Events` may have."""
    numbers = ak.Array([[1.5, 2.25, 0.125], [], [8.0]])
    two = ak.Array([[10.0, -20.0], [], []])
    return Events(
        detector=load_detector("cld"),
        hits=make_hits(
            energy=numbers,
            x=numbers * 2,
            y=-numbers,
            z=numbers + 1,
            time=ak.Array([[1.0, NAN, 3.0], [], [4.0]]),
            subdetector=ak.Array([[5, 0, 3], [], [4]]),
            layer=ak.Array([[-1, 3, 4], [], [0]]),
        ),
        tracks=make_tracks(
            b_field=2.0,
            omega=two * 1e-5,
            phi=two * 0.1,
            tan_lambda=two * 0.01,
            d0=two,
            z0=two * 3,
            calo_x=ak.Array([[2150.0, NAN], [], []]),
            calo_y=two,
            calo_z=two,
        ),
        tracker_hits=make_tracker_hits(x=numbers, y=numbers, z=numbers, energy=numbers * 1e-4, layer=numbers > 2),
        truth=make_truth(
            pdg=ak.Array([[22, -11], [], [211]]),
            mass=ak.Array([[0.0, 0.000510998950], [], [0.13957039]]),
            px=ak.Array([[0.1, 0.3], [], [1.0 / 3]]),
            py=ak.Array([[0.1, 0.3], [], [2.0]]),
            pz=ak.Array([[0.1, 0.3], [], [2.0]]),
            charge=ak.Array([[0.0, 1.0], [], [1.0]]),
            vx=ak.Array([[0.0, 310.7], [], [NAN]]),
            status=ak.Array([[1, 0], [], [1]]),
            parent=ak.Array([[-1, 0], [], [-1]]),
        ),
        hit_links=make_links(
            source=ak.Array([[0, 0, 2], [], [0]]),
            particle=ak.Array([[1, 0, 1], [], [0]]),
            weight=ak.Array([[1.0, 3.0, 0.5], [], [1.0]]),
        ),
        track_links=make_links(
            source=ak.Array([[0, 0, 1], [], []]),
            particle=ak.Array([[0, 1, 0], [], []]),
            weight=ak.Array([[1.0, 2.0, 1.0], [], []]),
        ),
        tracker_hit_links=make_links(source=ak.Array([[2], [], [0]]), particle=ak.Array([[1], [], [0]])),
        reference=make_particles(
            pdg=ak.Array([[22], [], [211]]),
            charge=ak.Array([[0.0], [], [1.0]]),
            energy=ak.Array([[5.0], [], [6.0]]),
            px=ak.Array([[3.0], [], [6.0]]),
            py=ak.Array([[4.0], [], [0.5]]),
            pz=ak.Array([[0.1], [], [0.5]]),
            mass=ak.Array([[0.25], [], [0.14]]),
            score=ak.Array([[0.75], [], [NAN]]),
        ),
        reference_name="PandoraPFOs",
        event=np.array([7, 9, 2**40]),
    )


@pytest.mark.parametrize("cuts", [[], [1, 2], [0, 3]], ids=["at once", "event by event", "with chunks without events"])
def test_every_part_comes_back(tmp_path, cuts, assert_same):
    events = by_hand()
    chunks = [events[start:stop] for start, stop in pairwise([0, *cuts, 3])]
    assert write_events(tmp_path / "out.root", iter(chunks) if cuts else events) == 3
    read = read_all(tmp_path / "out.root")
    assert_same(read, events, rtol=TOLERANCE)
    assert (read.detector, read.reference_name) == (events.detector, "PandoraPFOs")
    assert read.event.tolist() == events.event.tolist()


def test_no_events_keep_their_parts(tmp_path, assert_same):
    assert write_events(tmp_path / "out.root", by_hand()[:0]) == 0
    assert_same(read_all(tmp_path / "out.root"), by_hand()[:0])


def test_each_hit_names_its_largest_particle(tmp_path):
    write_events(tmp_path / "out.root", by_hand())
    with uproot.open(tmp_path / "out.root") as file:
        # Hit 0 is a quarter of particle 1 and three quarters of 0, hit 1 of nobody.
        assert file["events"]["calo_hit.particle"].array().to_list() == [[0, -1, 1], [], [0]]
        assert file["events"]["track.particle"].array().to_list() == [[1, 0], [], []]


def test_a_detector_of_the_users_own_travels_in_the_file(tmp_path):
    events = by_hand()
    mine = dataclasses.replace(events.detector, name="mine", b_field=1.25)
    write_events(tmp_path / "out.root", Events(detector=mine, hits=events.hits))
    assert read_all(tmp_path / "out.root").detector == mine


def test_chunks_that_make_no_file(tmp_path):
    events = by_hand()
    hits = Events(detector=events.detector, hits=events.hits)
    for chunks, message in (
        ([], "no events were given"),
        ([events, hits], r"chunks with hits, tracks, .* and with hits"),
        (
            [hits, dataclasses.replace(hits, detector=load_detector("clic"))],
            "of detector 'cld', and with hits of 'clic'",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            write_events(tmp_path / "out.root", chunks)
        assert list(tmp_path.iterdir()) == []


def test_a_file_remembers_that_its_tracks_were_made_from_monte_carlo_particles(tmp_path):
    events = by_hand()
    flags = np.full(len(events), Flag.TRUTH_TRACKS, dtype=np.uint32)
    write_events(tmp_path / "marked.root", dataclasses.replace(events, flags=flags))
    assert read_all(tmp_path / "marked.root").flags.tolist() == flags.tolist()
