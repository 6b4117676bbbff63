from __future__ import annotations

import numpy as np
import pytest

from pflow.data.dataset import EventDataset
from pflow.data.files import FileOptions, read_chunks, survey
from pflow.data.progress import EpochProgress
from pflow.event.augment import Augmentation
from pflow.tokens.tokeniser import Tokeniser

OPTIONS = FileOptions()


@pytest.fixture(scope="module")
def make(train_files):
    chunks = survey(train_files, OPTIONS, 16)[0]
    tokeniser = Tokeniser.fit(read_chunks(chunks, OPTIONS))
    options = {"tokeniser": tokeniser, "batch_size": 4, "buffer": 16, "seed": 3, "shuffle": True}
    return lambda **more: EventDataset(chunks, options=OPTIONS, **options, **more)


def positions(batches) -> list[int]:
    return [position for batch in batches for position in batch.position.tolist()]


def test_ranks_share_the_events_and_the_length_is_that_of_the_longest(make):
    ranks = [make(rank=rank, n_ranks=3) for rank in range(3)]
    batches = [list(rank) for rank in ranks]
    assert sorted(position for one in batches for position in positions(one)) == list(range(70))
    assert {len(rank) for rank in ranks} == {max(map(len, batches))}


def test_batches_in_order_are_the_same_for_any_number_of_ranks(make):
    def contents(n_ranks: int) -> list[list[int]]:
        ranks = [make(rank=rank, n_ranks=n_ranks) for rank in range(n_ranks)]
        for rank in ranks:
            rank.shuffle = False
        return sorted(batch.event.tolist() for rank in ranks for batch in rank)

    assert contents(1) == contents(2) == contents(3)


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_the_events_of_an_epoch_that_remain_come_once(make, n_ranks):
    """Interrupted on two ranks, twice; goes on with another number."""
    progress = EpochProgress.begin(5, 70)
    for taken in (3, 2):
        pair = [make(rank=rank, n_ranks=2, augmentation=Augmentation(rotate=True)) for rank in (0, 1)]
        for rank in pair:
            rank.set_epoch(5, omitted=progress.omitted)
        for _, *batches in zip(range(taken), *pair, strict=False):
            progress.add(np.concatenate([batch.position for batch in batches]))
        progress = EpochProgress.restore(progress.state(), same_batches=False)
    assert (progress.epoch, progress.seen.sum(), progress.skipped) == (5, 40, 0)
    later = [make(rank=rank, n_ranks=n_ranks) for rank in range(n_ranks)]
    for rank in later:
        rank.set_epoch(5, omitted=progress.omitted)
    batches = [list(rank) for rank in later]
    remaining = [position for one in batches for position in positions(one)]
    assert sorted(remaining + np.flatnonzero(progress.seen).tolist()) == list(range(70))
    assert later[0].n_batches(progress.omitted) == max(map(len, batches))


def test_chunks_of_which_all_events_were_seen_are_not_read(make, monkeypatch):
    read = []

    def spy(chunks, options, **more):
        read.extend(chunks)
        return read_chunks(chunks, options, **more)

    monkeypatch.setattr("pflow.data.dataset.read_chunks", spy)
    data, seen = make(), np.arange(70) < 20
    data.set_epoch(0, omitted=seen)
    assert sorted(positions(data)) == list(range(20, 70))
    assert [chunk.start for chunk in sorted(read, key=lambda chunk: (chunk.path, chunk.start))] == [16, 32, 0, 16]


def test_alone_as_before_the_batches_that_follow_are_those_of_one_go(make):
    whole, again = make(), make()
    progress = EpochProgress.begin(0, 70)
    batches = [batch.event.tolist() for batch in whole]
    for batch, _ in zip(make(), range(4), strict=False):
        progress.add(batch.position.numpy())
    progress = EpochProgress.restore(progress.state(), same_batches=True)
    assert progress.n_batches == progress.skipped == 4
    assert not progress.omitted.any()
    again.set_epoch(0, skip=progress.skipped)
    assert [batch.event.tolist() for batch in again] == batches[4:]
