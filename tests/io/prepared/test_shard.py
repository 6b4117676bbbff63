from __future__ import annotations

import functools
from contextlib import suppress

import pytest

from pflow.errors import InputError
from pflow.event.events import Events
from pflow.io.open import read_events
from pflow.io.prepared.shard import is_whole, read_shard, write_shard


@pytest.fixture(scope="module")
def events(sample_dir) -> Events:
    return read_events(sample_dir / "multi_test_small.root", entry_stop=10)


@pytest.fixture
def shard(events, tmp_path):
    """A shard in blocks of 4, and a reader of it."""
    path = tmp_path / "00000.arrow"
    content = write_shard(path, [events[first : first + 4] for first in range(0, 10, 4)])
    make = functools.partial(Events, detector=events.detector, path=events.path, reference_name=events.reference_name)
    return path, content, functools.partial(read_shard, path, content, block_size=4, make_events=make)


@pytest.mark.parametrize(("start", "stop"), [(0, 4), (0, 10), (1, 3), (3, 9), (8, 10), (9, 10), (5, 5), (0, 0)])
def test_what_is_read_is_what_was_written(same, events, shard, start, stop):
    _, _, read = shard
    found = read(start, stop)
    assert same(found, events[start:stop])
    assert (found.path, found.detector, found.reference_name) == (events.path, events.detector, events.reference_name)
    assert len(found.truth.momentum.pt) == stop - start


def test_without_truth(same, events, shard):
    _, _, read = shard
    assert same(read(2, 6, truth=False), events[2:6].without_truth())


def test_events_without_objects(same, events, shard, tmp_path):
    _, _, read = shard
    empty = events[:3].emptied(events.entry[:3] >= 0)
    content = write_shard(tmp_path / "empty.arrow", [empty])
    make = read.keywords["make_events"]
    assert same(read_shard(tmp_path / "empty.arrow", content, 0, 3, block_size=4, make_events=make), empty)


def test_each_byte_that_counts_is_checked(shard):
    path, content, read = shard
    assert is_whole(path, content)
    whole = path.read_bytes()
    refused = []
    for at in range(100, len(whole), len(whole) // 50):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with suppress(InputError):
            read(0, 10)
            continue
        refused.append(is_whole(path, content))
    assert len(refused) >= 45  # the others are padding
    assert not any(refused)


def test_names_are_checked(shard):
    path, content, read = shard
    path.write_bytes(path.read_bytes().replace(b"Vector3D", b"Vector2D"))
    assert not is_whole(path, content)
    with pytest.raises(InputError, match="block 0 does not hold what was written"):
        read(0, 4)


def test_other_damage_is_refused(shard):
    path, content, read = shard
    whole = path.read_bytes()
    for bytes_ in (whole[:-100], whole + b"\0", b"", b"\0" * len(whole)):
        path.write_bytes(bytes_)
        assert not is_whole(path, content)
        with pytest.raises(InputError, match=r"00000\.arrow: damaged shard"):
            read(0, 4)
    path.unlink()
    assert not is_whole(path, content)
    with pytest.raises(InputError, match=r"00000\.arrow"):
        read(0, 4)
