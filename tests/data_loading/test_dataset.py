import dataclasses
import weakref
from collections import Counter

import awkward as ak
import pytest
import torch
from torch.utils.data import DataLoader

from pflow.data.datamodule import ParticleFlowData
from pflow.data.dataset import EventDataset, Padder, StepLoader, StopRequest
from pflow.data.files import FileOptions, read_chunks, survey
from pflow.errors import ConfigError, InputError
from pflow.event.augment import Augmentation, Overlay
from pflow.event.events import BadEntriesWarning
from pflow.io.flat import write_events
from pflow.tokens.particles import PdgVocabulary
from pflow.tokens.tokeniser import Tokeniser
from pflow.tokens.tokens import TokenConfig

OPTIONS = FileOptions()
EVERYTHING = Augmentation(rotate=True, reflect=True, overlay=Overlay(frequencies=[1, 1, 1]))


@pytest.fixture(scope="module")
def chunks(train_files):
    return survey(train_files, OPTIONS, 16)[0]


@pytest.fixture(scope="module")
def tokeniser(chunks) -> Tokeniser:
    return Tokeniser.fit(read_chunks(chunks, OPTIONS))


@pytest.fixture
def dataset(chunks, tokeniser):
    def build(**more) -> EventDataset:
        options = {"options": OPTIONS, "tokeniser": tokeniser, "batch_size": 8, "buffer": 32, "seed": 3, **more}
        return EventDataset(chunks, **options)

    return build


def numbers(batches) -> list[list[int]]:
    return [batch.event.tolist() for batch in batches]


def flat(batches) -> list[int]:
    return [number for batch in numbers(batches) for number in batch]


def test_in_order_only_the_last_batch_is_short(dataset):
    assert flat(dataset()) == list(range(70))
    assert [len(batch) for batch in numbers(dataset())] == [8] * 8 + [6]
    for buffer in (8, 20):
        assert sorted(len(batch) for batch in numbers(dataset(shuffle=True, buffer=buffer))) == [6] + [8] * 8


def same(one: EventDataset, other: EventDataset) -> bool:
    return all(
        torch.equal(a.event, b.event)
        and torch.equal(a.batch.hits.features, b.batch.hits.features)
        and torch.equal(a.batch.target.direction, b.batch.target.direction)
        for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("augmentation", [None, EVERYTHING], ids=["plain", "augmented"])
def test_batches_are_the_same_for_the_same_seed_and_epoch_alone(dataset, augmentation):
    assert same(*(dataset(shuffle=True, augmentation=augmentation) for _ in range(2)))
    first, epoch, seed = (dataset(augmentation=EVERYTHING, seed=seed) for seed in (3, 3, 4))
    epoch.epoch = 1
    assert not same(first, epoch)
    assert not same(first, seed)


def test_ranks_share_the_events_and_the_length_is_that_of_the_longest(dataset):
    ranks = [dataset(shuffle=True, rank=rank, n_ranks=3) for rank in range(3)]
    batches = [list(rank) for rank in ranks]
    assert sorted(number for rank in batches for number in flat(rank)) == list(range(70))
    assert {len(rank) for rank in ranks} == {max(map(len, batches))}


def test_batches_in_order_depend_on_no_ranks_and_chunks(dataset, train_files, tokeniser):
    def contents(n_ranks: int) -> list[list[int]]:
        return sorted(batch for rank in range(n_ranks) for batch in numbers(dataset(rank=rank, n_ranks=n_ranks)))

    assert contents(1) == contents(2) == contents(3)
    one_chunk = EventDataset(survey(train_files, OPTIONS, 1000)[0], options=OPTIONS, tokeniser=tokeniser, batch_size=8)
    assert same(one_chunk, dataset())


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # on a machine with one core
@pytest.mark.parametrize("workers", [0, 2])
def test_the_length_is_that_of_a_pass(dataset, workers):
    data = dataset(shuffle=True, num_workers=workers)
    batches = list(DataLoader(data, batch_size=None, num_workers=workers))
    assert len(batches) == len(data)
    assert sorted(flat(batches)) == list(range(70))


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_budget_of_tokens_is_kept(dataset, shuffle):
    data = dataset(shuffle=shuffle, max_tokens=24)
    batches = list(data)
    assert all(batch.batch.hits.mask.numel() <= 24 for batch in batches)
    assert sorted(flat(batches)) == list(range(70))


def test_no_more_than_a_chunk_and_the_buffer_is_read_ahead(dataset, monkeypatch):
    read = []

    def spy(chunks, options, **more):
        for events in read_chunks(chunks, options, **more):
            read.append(len(events))
            yield events

    monkeypatch.setattr("pflow.data.dataset.read_chunks", spy)
    next(iter(dataset(shuffle=True, buffer=16)))
    assert sum(read) <= 16 + 16


def test_a_buffer_is_freed_before_the_next_is_filled(dataset, monkeypatch):
    padders: list[weakref.ref[Padder]] = []
    alive = []

    def noted(padder: Padder, *args: object) -> None:
        padders.append(weakref.ref(padder))
        init(padder, *args)

    def spy(*args):
        for events in read_chunks(*args):
            alive.append(sum(padder() is not None for padder in padders))
            yield events

    init = Padder.__init__
    monkeypatch.setattr(Padder, "__init__", noted)
    monkeypatch.setattr("pflow.data.dataset.read_chunks", spy)
    list(dataset(shuffle=True, buffer=16))
    assert len(padders) == 5
    assert max(alive) == 0


def test_codes_not_in_the_vocabulary_are_counted_in_one_warning(chunks, tokeniser, dataset):
    electrons = dataclasses.replace(tokeniser, pdg=PdgVocabulary.from_counts(Counter({11: 1})))
    with pytest.warns(UserWarning, match=r"70 particles .* 22 \(70 times\)") as caught:
        list(dataset(tokeniser=electrons))
    assert len(caught) == 1


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"shuffle": True, "buffer": 4}, "buffer of 4 events"),
    ],
)
def test_options_that_cannot_work_are_errors(dataset, more, message):
    with pytest.raises(ConfigError, match=message):
        dataset(**more)


def test_events_without_what_the_model_reads_are_refused_or_skipped(make_photons, spoil, tmp_path):
    events = make_photons(12)
    known = dataclasses.replace(events, hits=ak.with_field(events.hits, 0 * events.hits.subdetector, "layer"))
    write_events(tmp_path / "a.root", spoil(known, 5, "hits.layer", -1))
    recipe = TokenConfig(hit_features=("log_energy", "layer"))
    strict, skipping = FileOptions(), FileOptions(on_error="skip")
    chunks = survey([str(tmp_path / "a.root")], strict, 8)[0]
    with pytest.raises(InputError, match=r"a\.root, entry 5, 'hits\.layer'"):
        Tokeniser.fit(read_chunks(chunks, strict), recipe)
    with pytest.warns(BadEntriesWarning, match="1 of 12 entries cannot be used"):
        tokeniser = Tokeniser.fit(read_chunks(chunks, skipping), recipe, on_error="skip")
    with pytest.raises(InputError, match=r"a\.root, entry 5, 'hits\.layer'"):
        list(EventDataset(chunks, options=strict, tokeniser=tokeniser, batch_size=4))
    with pytest.warns(BadEntriesWarning, match="1 of 12 entries cannot be used"):
        batches = list(EventDataset(chunks, options=skipping, tokeniser=tokeniser, batch_size=4))
    assert flat(batches) == list(range(12))
    n_hits = [int(n) for batch in batches for n in batch.batch.hits.mask.sum(1)]
    assert [number for number, n in enumerate(n_hits) if n == 0] == [5]


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning", "ignore:.*use of fork:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_what_a_resumed_training_has_seen_is_skipped(train_files, val_file, workers):
    data = ParticleFlowData(train=train_files, val=val_file, batch_size=8, chunk_size=16, num_workers=workers)
    data.setup("fit")
    loader = data.train_dataloader()
    batches = [batch.event.tolist() for batch in loader]
    assert len(batches) == len(loader)
    data.load_state_dict({"epoch": 0, "n_batches": 3, "batching": data._batching()})
    assert [batch.event.tolist() for batch in data.train_dataloader()] == batches[3:]
    data.set_epoch(1)
    assert len([*loader]) == len(batches)


def test_an_epoch_of_other_batches_is_shuffled_anew(train_files, val_file):
    data = ParticleFlowData(train=train_files, val=val_file, batch_size=8, chunk_size=16)
    data.setup("fit")
    state = {"epoch": 4, "n_batches": 3, "batching": data._batching()}
    data.batch_size = 7
    with pytest.warns(UserWarning, match="the rest of its epoch is reshuffled"):
        data.load_state_dict(state)
    loader = data.train_dataloader()
    assert (loader.dataset.epoch, len([*loader])) == (4, 10)


def test_a_signal_is_agreed_with_the_next_batch(train_files, val_file):
    data = ParticleFlowData(train=train_files, val=val_file, batch_size=8)
    data.setup("fit")
    stop = StopRequest()
    batches = iter(StepLoader(data.train_dataloader().dataset, stop))
    next(batches)
    stop.signal = 15
    assert stop.agreed == 0
    next(batches)
    assert stop.agreed == 15
