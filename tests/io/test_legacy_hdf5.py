import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import awkward as ak
import h5py
import numpy as np
import pytest

from pflow.errors import ConfigError, InputError
from pflow.io.legacy_hdf5 import LABELS, LegacyReader, subdetectors
from pflow.physics.detector import load_detector

PHOTON = [22.0, 0.0, 0.0, 1.0, 2.0, 2.0, 0.0]
PION = [211.0, 1.0, 0.139, 0.0, 3.0, 4.0, 5.0]
HIT = [0.5, 1810.0, 10.0, -20.0, 6.5, 0.0, 0.0, 0.0, 0.0, 0.0]
TRACK = [0.0, 1805.0, 30.0, 40.0, 0.0, 1.0, 1.0, 3.0, 0.25, 4.0]
LABEL = [1.0, 0.0, *PHOTON]


def rows(events: list[Any], width: int, dtype: type = np.float32) -> ak.Array:
    """[event][row][column] with a fixed number of columns."""
    flat = np.array([row for event in events for row in event], dtype=dtype).reshape(-1, width)
    counts = np.array([len(event) for event in events], dtype=np.int64)
    return ak.unflatten(ak.from_numpy(flat, regulararray=True), counts)


def write(path: Path, feature: ak.Array, label: ak.Array, changes: Mapping[str, Any] | None = None) -> Path:
    """A file of the paper's; `changes` to the attributes and datasets of ``feature``, by name."""
    with h5py.File(path, "w") as file:
        for name, array in (("feature", feature), ("label", label)):
            form, length, buffers = ak.to_buffers(array)
            stored = {"form": form.to_json(), "length": str(length), **buffers}
            stored |= {} if name == "label" else dict(changes or {})
            group = file.create_group(name)
            for key, value in stored.items():
                if key not in ("form", "length"):
                    group.create_dataset(key, data=value)
                elif value is not None:
                    group.attrs[key] = value
    return path


def form_of(array: Any) -> str:
    return ak.to_buffers(ak.Array(array))[0].to_json()


def stored(path: Path, features: list[Any], labels: list[Any]) -> Path:
    """A file of the paper's with these rows [event][row][column]."""
    return write(path, rows(features, 10), rows(labels, 9, np.float64))


def two_events(folder: Path) -> Path:
    """One event with two hits and a track between them, made by particles 7, 2 and none; one without anything."""
    features = [[HIT, TRACK, [0.25, *HIT[1:]]], []]
    labels = [[[1, 7, *PHOTON], [-1, 2, *PION], [2, -1, *[0.0] * 7]], []]
    return stored(folder / "in.h5", features, labels)


class TestRowsByHand:
    def test_tracks_hits_and_their_links_to_the_distinct_particles(self, tmp_path):
        track = LegacyReader(two_events(tmp_path)).read(0, 1).tracks[0, 0]
        assert track.calo_position.to_list() == {"x": 1805.0, "y": 30.0, "z": 40.0}
        assert track.calo_momentum.to_list() == {"px": 3.0, "py": 0.25, "pz": 4.0}
        assert (track.charge, track.momentum.pz) == (1.0, 4.0)
        assert track.momentum.pt == pytest.approx(track.calo_momentum.pt, rel=1e-6)
        assert track.momentum.phi > track.calo_momentum.phi  # positive charge, field along +z: clockwise going out
        events = LegacyReader(two_events(tmp_path)).read(0, 2).validate()
        assert events.hits.energy.to_list() == [[0.5, 0.25], []]
        assert events.hits.time.to_list() == [[6.5, 6.5], []]
        assert events.hits.position[0, 1].to_list() == {"x": 1810.0, "y": 10.0, "z": -20.0}
        assert events.truth.pdg.to_list() == [[211, 22], []]  # mcid 2, then 7
        assert events.hit_links.to_list() == [[{"source": 0, "particle": 1, "weight": 1.0}], []]
        assert events.track_links.to_list() == [[{"source": 0, "particle": 0, "weight": 1.0}], []]
        pion, photon = events.truth[0]
        assert (pion.charge, pion.status) == (1.0, 5)
        assert pion.rest_mass == pytest.approx(0.139)
        assert (photon.charge, photon.mass, photon.energy, photon.status) == (0.0, 0.0, 3.0, 0)
        assert photon.momentum.to_list() == {"px": 1.0, "py": 2.0, "pz": 2.0}

    def test_status_bits_are_kept_and_without_truth_no_labels_read(self, tmp_path):
        bits = 2**31 + 2**26
        path = stored(tmp_path / "in.h5", [[HIT]], [[[1, 0, *PHOTON[:-1], float(bits)]]])
        assert LegacyReader(path).read(0, 1).truth.status[0, 0] == bits - 2**32
        path = stored(tmp_path / "in.h5", [[HIT]], [[[1, 0.5, *PHOTON]]])
        assert [name for name, _ in LegacyReader(path).read(0, 1, truth=False).parts()] == ["hits", "tracks"]


class TestBadInput:
    @pytest.mark.parametrize(
        ("features", "labels", "message"),
        [
            ([[HIT], []], [[[LABEL]]], "'label': expected as many events as in 'feature', 2, found 1"),
            ([[HIT], [HIT]], [[LABEL], [LABEL] * 2], "entry 1, 'label': expected as many rows as in 'feature', 1"),
        ],
    )
    def test_tables_of_different_lengths(self, tmp_path, features, labels, message):
        with pytest.raises(InputError, match=message):
            LegacyReader(stored(tmp_path / "in.h5", features, labels))

    @pytest.mark.parametrize(("column", "value"), [("mcid", 0.5), ("pdg", np.nan)])
    def test_an_identity_that_is_no_whole_number(self, tmp_path, column, value):
        label = list(LABEL)
        label[LABELS.index(column)] = value
        reader = LegacyReader(stored(tmp_path / "in.h5", [[HIT], [HIT]], [[LABEL], [label]]))
        with pytest.raises(InputError, match=rf"entry 1, 'label': expected a whole number for {column}, found {value}"):
            reader.read(0, 2)

    @pytest.mark.parametrize(
        "changes",
        [
            *({"form": text} for text in (None, "{broken", form_of([{"x": 1.0}]), form_of(rows([[HIT[:9]]], 9)))),
            *({"length": text} for text in (None, "many", "-1", "7")),
            *({"node0-offsets": np.array(offsets)} for offsets in ([0, 2, 1], [0, 1, 9])),
            *({"node2-data": data} for data in (np.zeros((2, 2)), np.array([b"text"]))),
        ],
        ids=str,
    )
    def test_what_a_group_cannot_be(self, tmp_path, changes):
        path = write(tmp_path / "in.h5", rows([[HIT], [HIT]], 10), rows([[LABEL], [LABEL]], 9, np.float64), changes)
        with pytest.raises(InputError, match=r"in\.h5, 'feature': ") as caught:
            LegacyReader(path)
        assert (caught.value.file, caught.value.field) == (str(path), "feature")

    def test_a_file_in_another_form_is_refused(self, tmp_path, sample_dir):
        path = tmp_path / "in.h5"
        with pytest.raises(InputError, match=r"in\.h5: no such file"):
            LegacyReader(path)
        for content in (b"hello", (sample_dir / "gamma1_small.h5").read_bytes()[:-500]):
            path.write_bytes(content)
            with pytest.raises(InputError, match=r"in\.h5: expected an HDF5 file.*cannot open it"):
                LegacyReader(path)
        for name in ("other", "feature"):
            with h5py.File(path, "w") as file:
                file[name] = np.zeros(3)
            with pytest.raises(InputError, match="'feature': not a group of the first paper's"):
                LegacyReader(path)

    def test_damaged_numbers_name_file_entry_and_group(self, tmp_path):
        path = stored(tmp_path / "in.h5", [[HIT] * 500, [HIT]], [[LABEL] * 500, [LABEL]])
        with h5py.File(path, "a") as file:
            numbers = file["feature/node2-data"][()]
            del file["feature/node2-data"]
            file["feature"].create_dataset("node2-data", data=numbers, chunks=(1000,), compression="gzip")
            chunk = file["feature/node2-data"].id.get_chunk_info(2)
        content = bytearray(path.read_bytes())
        content[chunk.byte_offset : chunk.byte_offset + chunk.size] = b"\xff" * chunk.size
        path.write_bytes(content)
        reader = LegacyReader(path)
        assert len(reader.read(0, 0)) == 0
        with pytest.raises(InputError, match="damaged file") as caught:
            reader.read(0, 1)
        assert (caught.value.file, caught.value.entry, caught.value.field) == (str(path), 0, "feature")


@pytest.mark.parametrize("part", [slice(None), slice(1, None), slice(0, 0)])
@pytest.mark.parametrize("first_awkward", [False, True])
def test_rows_are_read_of_either_awkward(tmp_path, part, first_awkward):
    features = rows([[HIT, TRACK], [], [HIT]], 10)[part]
    path = write(tmp_path / "in.h5", features, rows([[LABEL, LABEL], [], [LABEL]], 9)[part])
    if first_awkward:
        with h5py.File(path, "a") as file:
            for group in file.values():
                group.attrs["form"] = group.attrs["form"].replace("ListOffsetArray", "ListOffsetArray64")
                for name in list(group):
                    group.move(name, f"part0-{name}")
    reader = LegacyReader(path)
    events = reader.read(0, reader.num_entries)
    assert events.hits.energy.to_list() == [[0.5], [], [0.5]][part]
    assert events.tracks.charge.to_list() == [[1.0], [], []][part]


@pytest.mark.parametrize(
    ("position", "name"),
    [
        ((1805.0, 0.0, 0.0), "ecal_barrel"),
        ((0.0, -1979.0, 2349.0), "ecal_barrel"),
        ((1500.0, 1500.0, -100.0), "hcal_barrel"),  # r = 2121 mm
        ((300.0, 0.0, -2412.0), "ecal_endcap"),
        ((2500.0, 0.0, 2600.0), "ecal_endcap"),
        ((300.0, 0.0, 2650.0), "hcal_endcap"),
        ((0.0, 2900.0, -3000.0), "hcal_endcap"),
    ],
)
def test_the_position_of_a_hit_tells_its_calorimeter(position, name):
    detector = load_detector("ild_g4")
    x, y, z = (np.array([value]) for value in position)
    (index,) = subdetectors(x, y, z, detector)
    assert detector.calorimeters[index].name == name


def test_a_detector_must_have_the_four_calorimeters_described(tmp_path):
    with pytest.raises(ConfigError, match="'cld' does not say where its HCAL begins"):
        LegacyReader(two_events(tmp_path), detector="cld")
    detector = load_detector("ild_g4")
    with pytest.raises(ConfigError, match="'ild_g4' has no hcal endcap"):
        subdetectors(*np.zeros((3, 0)), dataclasses.replace(detector, calorimeters=detector.calorimeters[:3]))
