import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import uproot
from torch.utils.data import DataLoader, IterableDataset

from pflow.data.dataset import Chunk, FileOptions, begin_worker, read_chunks, spread_sample, survey
from pflow.errors import ConfigError, InputError
from pflow.event.events import BadEntriesWarning
from pflow.io.flat import write_events


class Process(IterableDataset[int]):
    """The number of the process that loads, some times."""

    def __iter__(self) -> Iterator[int]:
        yield from [os.getpid()] * 9


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_workers_outlive_a_signal_to_all_processes(number):
    batches = iter(DataLoader(Process(), batch_size=None, num_workers=1, worker_init_fn=begin_worker))
    worker = next(batches)
    assert worker != os.getpid()
    os.kill(worker, number)
    assert list(batches) == [worker] * 8


def test_chunks_cover_each_file_and_never_span_two(train_files):
    chunks = survey(train_files, FileOptions(), 16)[0]
    a, b = train_files
    assert chunks == [Chunk(a, 0, 16), Chunk(a, 16, 32), Chunk(a, 32, 40), Chunk(b, 0, 30)]
    assert sum(len(chunk) for chunk in chunks) == 70


def test_a_sample_is_spread_over_all_files():
    chunks = [Chunk(path, start, start + 250) for path in "abcd" for start in (0, 250, 500, 750)]
    sample = spread_sample(chunks, 640)
    assert sum(map(len, sample)) == 640
    assert all(sum(len(chunk) for chunk in sample if chunk.path == path) >= 128 for path in "abcd")
    assert all(0 <= chunk.start < chunk.stop <= 1000 for chunk in sample)
    entries = [(chunk.path, entry) for chunk in sample for entry in range(chunk.start, chunk.stop)]
    assert len(set(entries)) == len(entries)
    assert spread_sample(chunks, 4000) == chunks
    many = [Chunk(f"{number}.root", 0, 10) for number in range(100)]
    assert len(spread_sample(many, 200)) == 20  # each is opened for ten entries
    with pytest.raises(ConfigError, match="at least 1 event"):
        spread_sample(chunks, 0)


def test_files_that_are_known_are_opened_without_looking_what_they_are(train_files, monkeypatch):
    chunks, known = survey(train_files, FileOptions(), 16)
    energies = [events.hits.energy.to_list() for events in read_chunks(chunks, FileOptions())]
    monkeypatch.setattr("pflow.io.open.sniff", None)
    assert [events.hits.energy.to_list() for events in read_chunks(chunks, known)] == energies


def test_unusable_files_are_left_out_where_errors_are_skipped(train_files, tmp_path, make_photons):
    write_events(tmp_path / "empty.root", make_photons(2)[:0])
    (tmp_path / "short.root").write_bytes(Path(train_files[0]).read_bytes()[:5000])
    with uproot.recreate(tmp_path / "other.root") as file:
        file["numbers"] = {"n": np.arange(3)}
    unusable = [str(tmp_path / f"{name}.root") for name in ("empty", "short", "other")]
    with pytest.warns(BadEntriesWarning, match=r"(?s)^3 of 5 .*empty\.root.*short\.root.*other\.root"):
        chunks, options = survey(
            [unusable[0], train_files[0], *unusable[1:], train_files[1]], FileOptions(on_error="skip"), 16
        )
    assert chunks == survey(train_files, FileOptions(), 16)[0]
    assert set(options.known) == set(train_files)
    with pytest.raises(InputError, match=r"empty\.root"):
        survey(unusable, FileOptions(on_error="skip"), 16)


def test_few_files_are_open_at_a_time_and_each_is_opened_once(make_photons, tmp_path, monkeypatch):
    opened, open_file = [], FileOptions.open
    monkeypatch.setattr(FileOptions, "open", lambda options, path: opened.append(path) or open_file(options, path))
    paths = [str(tmp_path / f"{number}.root") for number in range(3)]
    for number, path in enumerate(paths):
        write_events(path, make_photons(4, first=10 * number))
    chunks = [Chunk(path, start, start + 1) for start in (2, 0, 1) for path in paths]
    numbers = [int(events.event[0]) for events in read_chunks(chunks, FileOptions())]
    assert numbers == [2, 12, 22, 0, 10, 20, 1, 11, 21]
    assert opened == paths
