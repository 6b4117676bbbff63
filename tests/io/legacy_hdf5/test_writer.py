from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import awkward as ak
import h5py
import numpy as np
import pytest

from pflow.errors import ConfigError, InputError
from pflow.event.build import make_hits, make_links, make_tracks, make_truth
from pflow.event.events import Events
from pflow.event.links import assigned_particle
from pflow.io.legacy_hdf5.reader import FEATURES, LABELS, LegacyReader
from pflow.io.legacy_hdf5.writer import write_legacy
from pflow.io.open import read_events
from pflow.physics.detector import load_detector


def arrays(path: Path) -> dict[str, ak.Array]:
    """The two groups as the paper's own code puts them together."""
    with h5py.File(path) as file:
        return {
            name: ak.from_buffers(
                group.attrs["form"],
                int(group.attrs["length"]),
                {key: np.asarray(value) for key, value in group.items()},
            )
            for name, group in file.items()
        }


def by_hand() -> Events:
    """An event with two hits (a shared one and one of unlinked) and two tracks, and an empty one."""
    one = ak.Array([[1.0, 2.0], []])
    nan = float("nan")
    return Events(
        detector=load_detector("ild_g4"),
        hits=make_hits(energy=one, x=one * 1810, y=one * 2, z=one * 3, time=one * 4),
        tracks=make_tracks(
            b_field=3.5,
            px=one,
            py=one,
            pz=one,
            charge=ak.Array([[1.0, -1.0], []]),
            calo_x=one * 1805,
            calo_y=one * 6,
            calo_z=one * 7,
            calo_px=ak.Array([[0.5, nan], []]),
            calo_py=ak.Array([[1.25, nan], []]),
            calo_pz=ak.Array([[1.0, nan], []]),
        ),
        truth=make_truth(
            pdg=ak.Array([[22, 211], []]),
            mass=ak.Array([[0.0, 0.139], []]),
            px=one,
            py=one * 10,
            pz=one * 100,
            charge=ak.Array([[0.0, 1.0], []]),
            status=ak.Array([[1, -(2**31)], []]),
        ),
        hit_links=make_links(
            source=ak.Array([[0, 0], []]), particle=ak.Array([[0, 1], []]), weight=ak.Array([[1.0, 3.0], []])
        ),
        track_links=make_links(source=ak.Array([[1], []]), particle=ak.Array([[0], []])),
    )


def test_features_row_by_row(tmp_path):
    assert write_legacy(tmp_path / "out.h5", by_hand()) == 2
    feature = arrays(tmp_path / "out.h5")["feature"]
    assert str(feature.type) == "2 * var * 10 * float32"
    assert feature.to_list() == [
        [
            [1.0, 1810.0, 2.0, 3.0, 4.0, 0.0, 0.0, 0.0, 0.0, 0.0],
            [2.0, 3620.0, 4.0, 6.0, 8.0, 0.0, 0.0, 0.0, 0.0, 0.0],
            [0.0, 1805.0, 6.0, 7.0, 0.0, 1.0, 1.0, 0.5, 1.25, 1.0],
            [0.0, 3610.0, 12.0, 14.0, 0.0, 1.0, -1.0, 2.0, 2.0, 2.0],
        ],
        [],
    ]


def test_labels_row_by_row(tmp_path):
    write_legacy(tmp_path / "out.h5", by_hand())
    label = arrays(tmp_path / "out.h5")["label"]
    assert str(label.type) == "2 * var * 9 * float64"
    unlinked = [0.0] * 7
    assert label.to_list() == [
        [
            [1.0, 1.0, 211.0, 1.0, 0.139, 2.0, 20.0, 200.0, 2.0**31],
            [2.0, -1.0, *unlinked],
            [-1.0, -1.0, *unlinked],
            [-2.0, 0.0, 22.0, 0.0, 0.0, 1.0, 10.0, 100.0, 1.0],
        ],
        [],
    ]


def test_the_sample_of_the_paper_comes_back(tmp_path, data_dir):
    path = data_dir / "legacy" / "gamma1_30.h5"
    reader = LegacyReader(path)
    write_legacy(tmp_path / "out.h5", [reader.read(0, 13), reader.read(13, 30)])
    before, after = arrays(path), arrays(tmp_path / "out.h5")
    assert after["feature"].to_list() == before["feature"].to_list()
    # mcid becomes the index of the particle: the ranks of the old ones, which are the same names in another alphabet.
    mcid = LABELS.index("mcid")
    ranks = [np.unique(ak.to_numpy(event[:, mcid]), return_inverse=True)[1].tolist() for event in before["label"]]
    assert after["label"][..., mcid].to_list() == ranks
    others = [at for at in range(len(LABELS)) if at != mcid]
    assert after["label"][..., others].to_list() == before["label"][..., others].to_list()


@pytest.fixture(scope="module", params=["multi_test_small", "zqq_test_small"])
def there_and_back(request, sample_dir, tmp_path_factory) -> tuple[Events, Events]:
    """Events of a flat file, and as they are read from a file of the paper's."""
    path = tmp_path_factory.mktemp("legacy") / "out.h5"
    before = read_events(sample_dir / f"{request.param}.root")
    write_legacy(path, before)
    return before, read_events(path).validate()


def test_hits_tracks_and_assigned_particles_come_back(there_and_back):
    before, after = there_and_back
    for field in ("energy", "time", "subdetector"):
        assert after.hits[field].to_list() == before.hits[field].to_list()
    for axis in "xyz":
        assert after.hits.position[axis].to_list() == before.hits.position[axis].to_list()
        assert after.tracks.calo_position[axis].to_list() == before.tracks.calo_position[axis].to_list()
    for links, sources in (("hit_links", "hits"), ("track_links", "tracks")):
        energies = []
        for events in (before, after):
            assigned = assigned_particle(getattr(events, links), getattr(events, sources))
            energy = events.truth.energy[ak.mask(assigned, assigned >= 0)]
            energies.append(ak.fill_none(energy, -1.0).to_list())
        assert energies[0] == energies[1]


def test_momenta_at_the_vertex_are_found_from_those_at_the_calorimeter(there_and_back):
    before, after = there_and_back
    angle = ak.to_numpy(ak.flatten(before.tracks.momentum.deltaangle(after.tracks.momentum)))
    turned = ak.to_numpy(ak.flatten(before.tracks.momentum.deltaangle(before.tracks.calo_momentum)))
    # Multiple scattering and energy loss remain; most of the turn in the field, by far the larger, is undone.
    assert np.median(angle) < 0.1 * np.median(turned)


def test_chunks_join_to_one_file(tmp_path):
    events = by_hand()
    assert write_legacy(tmp_path / "one.h5", events) == 2
    assert write_legacy(tmp_path / "two.h5", (events[i : i + 1] for i in range(2))) == 2
    one, two = arrays(tmp_path / "one.h5"), arrays(tmp_path / "two.h5")
    assert all(one[name].to_list() == two[name].to_list() for name in ("feature", "label"))


def test_events_without_tracks(tmp_path):
    events = dataclasses.replace(by_hand(), tracks=None, track_links=None)
    write_legacy(tmp_path / "out.h5", events)
    assert arrays(tmp_path / "out.h5")["feature"][..., FEATURES.index("track")].to_list() == [[0.0, 0.0], []]


def test_tracks_without_links(tmp_path):
    write_legacy(tmp_path / "out.h5", dataclasses.replace(by_hand(), track_links=None))
    assert arrays(tmp_path / "out.h5")["label"][..., LABELS.index("mcid")].to_list() == [[1.0, -1.0, -1.0, -1.0], []]


def test_no_events(tmp_path):
    assert write_legacy(tmp_path / "out.h5", by_hand()[:0]) == 0
    assert LegacyReader(tmp_path / "out.h5").num_entries == 0


def test_events_without_truth_cannot_be_labelled(tmp_path):
    events = Events(detector=load_detector("ild_g4"), hits=by_hand().hits, path="in.root")
    with pytest.raises(InputError, match=r"in\.root: holds no truth"):
        write_legacy(tmp_path / "out.h5", events)
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_nothing(tmp_path):
    def chunks() -> Iterator[Events]:
        yield by_hand()
        raise RuntimeError("half-way")

    with pytest.raises(RuntimeError, match="half-way"):
        write_legacy(tmp_path / "out.h5", chunks())
    assert list(tmp_path.iterdir()) == []


def test_the_input_is_not_overwritten(tmp_path):
    (tmp_path / "in.h5").write_text("precious")
    with pytest.raises(ConfigError, match="it is the input"):
        write_legacy(tmp_path / "in.h5", by_hand(), inputs=[tmp_path / "in.h5"])
