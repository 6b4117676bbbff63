import dataclasses
import os
import shutil
import warnings
from pathlib import Path

import awkward as ak
import numpy as np
import pytest
import torch

from pflow.data.datamodule import ParticleFlowData
from pflow.data.files import FileOptions, read_chunks, survey
from pflow.event.augment import Augmentation, Overlay
from pflow.event.events import BadEntriesWarning, Events
from pflow.event.merge_hits import Merge
from pflow.event.schema import make_hits
from pflow.io import cache
from pflow.io.flat import write_events
from pflow.io.open import EventFile, read_events
from pflow.physics.detector import load_detector


@pytest.fixture
def path(sample_dir, tmp_path) -> Path:
    return Path(shutil.copy(sample_dir / "multi_test_small.root", tmp_path / "in.root"))


@pytest.fixture
def n_read(monkeypatch) -> list[int]:
    """Entries that were read from files, since it was emptied."""
    starts: list[int] = []
    read = EventFile.read

    def noted(self, start=0, stop=None, **more):
        starts.append(start)
        return read(self, start, stop, **more)

    monkeypatch.setattr(EventFile, "read", noted)
    return starts


def read(path: Path, **more) -> list[Events]:
    chunks, options = survey([str(path)], FileOptions(cache=str(path.parent / "cache"), **more), 10)
    return list(read_chunks(chunks, options))


def kept(path: Path) -> list[Path]:
    return sorted((path.parent / "cache").rglob("*.safetensors"))


@pytest.fixture
def assert_all_same(assert_same):
    """Checks lists of events, and what belongs to them."""

    def check(first: list[Events], second: list[Events]) -> None:
        for one, two in zip(first, second, strict=True):
            assert_same(one, two)
            for name in ("entry", "event", "flags"):
                np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
            for name in ("path", "detector", "absent", "reference_name"):
                assert getattr(one, name) == getattr(two, name)

    return check


@pytest.mark.parametrize("name", ["cld_zqq_small_sim.edm4hep.root", "multi_test_small.root", "gamma1_small.h5"])
def test_events_come_back_and_the_file_is_not_opened(sample_dir, tmp_path, name, assert_all_same, monkeypatch):
    path = Path(shutil.copy(sample_dir / name, tmp_path))
    chunks, options = survey([str(path)], FileOptions(cache=str(tmp_path / "cache")), 10)
    first = list(read_chunks(chunks[:3], options))
    monkeypatch.setattr(FileOptions, "open", lambda *_: pytest.fail("the file was opened"))
    second = list(read_chunks(chunks[:3], options))
    assert_all_same(first, second)
    assert all(events.truth.momentum.pt is not None for events in second)


def test_nothing_stale_is_used(path, n_read, monkeypatch):
    for _ in range(2):
        read(path)
        assert len(n_read) == 3
    read(path, detector="ild")
    assert len(n_read) == 6
    os.utime(path, ns=(0, 0))
    read(path)
    assert len(n_read) == 9
    write_events(path, read_events(path, entry_stop=7))
    n_read.clear()
    assert sum(map(len, read(path))) == 7
    for name in ("FORMAT", "VERSION"):
        n_read.clear()
        monkeypatch.setattr(cache, name, "another")
        read(path)
        assert len(n_read) == 1


@pytest.mark.parametrize("shortened", [True, False])
def test_damaged_chunks_are_read_and_written_again(path, n_read, shortened, assert_all_same):
    before = read(path)
    for file in kept(path):
        content = file.read_bytes()
        file.write_bytes(content[: len(content) // 2] if shortened else bytes(len(content)))
    n_read.clear()
    for _ in range(2):
        assert_all_same(read(path), before)
        assert len(n_read) == 3


def test_chunks_appear_only_when_whole(path, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", killed)
        with pytest.raises(KeyboardInterrupt):
            read(path)
    assert kept(path) == []
    read(path)
    assert len(kept(path)) == 3


@pytest.mark.parametrize("limit", [0, 1000])
def test_a_cache_that_cannot_be_written_costs_one_warning(path, largest_file, limit, monkeypatch):
    monkeypatch.setattr(cache, "_unwritable", set())
    expected = read_events(path)
    with largest_file(limit), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert cache.check_cache(path.parent / "cache") == bool(limit)
        energies = [energy for _ in range(2) for events in read(path) for energy in events.hits.energy.to_list()]
    assert energies == expected.hits.energy.to_list() * 2
    messages = [str(warning.message).partition(": cannot write")[0] for warning in caught]
    assert messages == ["events are read without a cache"]
    assert kept(path) == []


def test_bad_entries_are_warned_of_each_time(tmp_path):
    hits = make_hits(energy=ak.Array([[1.0], [-1.0], [3.0]]), **dict.fromkeys("xyz", ak.Array([[1.0]] * 3)))
    write_events(tmp_path / "in.root", Events(detector=load_detector("ild_g4"), hits=hits))
    for _ in range(2):
        with pytest.warns(BadEntriesWarning, match="1 of 3"):
            (events,) = read(tmp_path / "in.root", on_error="skip")
        assert events.hits.energy.to_list() == [[1.0], [], [3.0]]
    assert kept(tmp_path / "in.root") == []


def tensors(value):
    """Everything in a batch that is compared, bit for bit."""
    if isinstance(value, torch.Tensor):
        yield value.numpy().tobytes(), value.dtype, value.shape
    elif isinstance(value, tuple):
        for part in value:
            yield from tensors(part)
    elif dataclasses.is_dataclass(value):
        for part in vars(value).values():
            yield from tensors(part)
    else:
        yield value


EVERYTHING = Augmentation(rotate=True, reflect=True, overlay=Overlay(frequencies=[1, 1, 1]))


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
def test_the_cache_does_not_change_batches(path, tmp_path):
    """Without a cache, while it is written, and from it; two processes read at once."""
    batches = []
    for folder in (None, tmp_path / "cache", tmp_path / "cache"):
        data = ParticleFlowData(
            train=str(path),
            val=str(path),
            cache=None if folder is None else str(folder),
            chunk_size=4,
            batch_size=3,
            buffer=9,
            order="tracks_first",
            track_features=["log_p", "nx", "ny", "nz"],
            tracker_hit_features=["x", "y", "z"],
            merge=Merge(ecal_mm=20.0, hcal_mm=90.0, layers=10),
            repeat={"in*": 2},
            num_workers=2,
            augment=EVERYTHING,
        )
        data.setup("fit")
        data.use_readout(True)
        batches.append([list(tensors(batch)) for batch in data.train_dataloader()])
    assert batches[0] == batches[1] == batches[2]
    assert len(kept(path)) == 7
