import dataclasses
import os
import signal
import weakref
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import pytest
import torch
import uproot
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from pflow.data.datamodule import ParticleFlowData
from pflow.data.dataset import (
    Chunk,
    EventDataset,
    FileOptions,
    Padder,
    begin_worker,
    bucket,
    collate,
    cut,
    read_chunks,
    spread_sample,
    survey,
)
from pflow.errors import ConfigError, InputError
from pflow.event.augment import Augmentation, Overlay
from pflow.event.events import BadEntriesWarning, Events
from pflow.event.merge import Merge
from pflow.io.flat import write_events
from pflow.io.open import read_events
from pflow.tokens.particles import PdgVocabulary
from pflow.tokens.tokeniser import Tokeniser
from pflow.tokens.tokens import TokenConfig, Tokens

CONFIG = TokenConfig(
    track_features=("log_p", "charge"), merge=Merge(ecal_mm=20.0, hcal_mm=90.0, layers=5), readout=True
)


@pytest.fixture(scope="module")
def events(sample_dir) -> Events:
    """Six events, one of them with nothing."""
    return read_events(sample_dir / "multi_test_small.root", entry_stop=6).emptied(np.arange(6) == 1)


@pytest.fixture(scope="module")
def tokens(events) -> Tokens:
    return Tokeniser.fit([events], CONFIG).encode(events)


def tensors(part: Any) -> list[Tensor]:
    if not dataclasses.is_dataclass(part):
        return [part] if isinstance(part, Tensor) else []
    return [tensor for value in vars(part).values() for tensor in tensors(value)]


def test_a_batch_is_as_long_as_its_longest_event_with_zeros_behind_the_others(tokens):
    batch = collate(tokens)
    masks = {"hits": batch.hits.mask, "tracks": batch.tracks.mask, "target": batch.target.mask}
    masks |= {"readout_hits": batch.readout.mask, "readout_tracks": batch.readout.track_mask}
    for kind, mask in masks.items():
        counts = np.diff(tokens.offsets[kind])
        assert mask.sum(1).tolist() == counts.tolist()
        assert mask.shape[1] == max(counts) > min(counts) == 0
    together = tensors(collate(tokens))
    for i in range(len(tokens)):
        for whole, alone in zip(together, tensors(collate(tokens, [i])), strict=True):
            unpadded = tuple(slice(size) for size in alone.shape[1:])
            assert torch.equal(whole[i][unpadded], alone[0])
            behind = whole[i].clone()
            behind[unpadded] = 0
            assert not behind.any()


def test_a_batch_has_the_values_of_its_events_in_memory_of_its_own(tokens):
    for i in range(len(tokens)):
        arrays, batch = tokens[i].arrays, collate(tokens, [i])
        assert np.array_equal(batch.hits.features[0], arrays["hits"])
        assert np.array_equal(batch.target.direction[0], arrays["direction"])
        assert np.array_equal(batch.readout.energy[0], arrays["readout.energy"])
        particle, hit, weight = (arrays[f"readout.hit_assignment.{name}"] for name in ("particle", "source", "weight"))
        dense = np.zeros((len(arrays["charge"]), len(arrays["readout.energy"])), np.float32)
        dense[particle, hit] = weight
        assert np.array_equal(batch.target.hit_fraction[0], dense)
    for rows in ([0], [2, 5]):
        for tensor in tensors(collate(tokens, rows)):
            assert tensor.untyped_storage().nbytes() == tensor.nbytes
    expected = tokens.arrays["hits"].copy()
    collate(tokens, [0]).hits.features.zero_()
    assert np.array_equal(tokens.arrays["hits"], expected)


@pytest.mark.parametrize("cuts", [(3,), (1, 2, 2, 5)])
@pytest.mark.parametrize("rows", [[4, 0, 2], [5], [0, 1, 2, 3, 4, 5]])
def test_events_may_lie_in_several_parts(tokens, cuts, rows):
    parts = [tokens[first:last] for first, last in zip((0, *cuts), (*cuts, len(tokens)), strict=True)]
    for found, expected in zip(tensors(Padder(parts).batch(rows)), tensors(collate(tokens, rows)), strict=True):
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)


def test_batches_without_truth_readout_or_events(events, tokens):
    with pytest.raises(ConfigError, match="at least one event"):
        collate(tokens, [])
    tokeniser = Tokeniser.fit([events], TokenConfig())
    assert collate(tokeniser.encode(events, truth=False)).target is None
    batch = collate(tokeniser.encode(events))
    assert (batch.readout, batch.target.hit_fraction, batch.target.track_fraction) == (None, None, None)
    with pytest.raises(ConfigError, match=r"1 of 2 parts of the events have tracks, expected all or none"):
        Padder([tokens, tokeniser.encode(events)])


def lists(batches):
    return [batch.tolist() for batch in batches]


def test_cut_keeps_the_order_and_to_the_budget_with_padding():
    assert lists(cut([5] * 7, 3)) == [[0, 1, 2], [3, 4, 5], [6]]
    # 2 x 4 = 8 fits 9, a third event would make 3 x 4 = 12; then 5 + 5 = 10 does not fit.
    assert lists(cut([1, 4, 2, 5, 5], 10, max_tokens=9)) == [[0, 1], [2], [3], [4]]


@pytest.fixture
def lengths() -> np.ndarray:
    return np.random.default_rng(1).integers(1, 1000, 256)


def test_buckets_pad_far_less_than_random_batches(lengths):
    def padded(batches):
        return sum(lengths[batch].max() * len(batch) for batch in batches) / lengths.sum() - 1

    generator = np.random.default_rng(2)
    assert padded(bucket(lengths, 16, None, generator)) < 0.1
    assert padded(np.array_split(generator.permutation(256), 16)) > 0.5


@pytest.mark.parametrize("max_tokens", [None, 5000])
def test_every_event_is_in_one_batch_within_the_limits(lengths, max_tokens):
    sizes = np.array([*lengths, 0, 7000])
    batches = bucket(sizes, 16, max_tokens, np.random.default_rng(2))
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(sizes)))
    assert max(map(len, batches)) <= 16
    assert all(len(b) == 1 or max_tokens is None or len(b) * sizes[b].max() <= max_tokens for b in batches)


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


def test_in_order_the_last_batch_is_short_and_ranks_share_the_events(dataset):
    assert flat(dataset()) == list(range(70))
    assert [len(batch) for batch in numbers(dataset())] == [8] * 8 + [6]
    for buffer in (8, 20):
        assert sorted(len(batch) for batch in numbers(dataset(shuffle=True, buffer=buffer))) == [6] + [8] * 8
    ranks = [dataset(shuffle=True, rank=rank, n_ranks=3) for rank in range(3)]
    batches = [list(rank) for rank in ranks]
    assert sorted(number for rank in batches for number in flat(rank)) == list(range(70))
    assert {len(rank) for rank in ranks} == {max(map(len, batches))}


def same(one: EventDataset, other: EventDataset) -> bool:
    return all(
        torch.equal(a.event, b.event)
        and torch.equal(a.batch.hits.features, b.batch.hits.features)
        and torch.equal(a.batch.target.direction, b.batch.target.direction)
        for a, b in zip(one, other, strict=True)
    )


def test_batches_are_the_same_for_the_same_seed_and_epoch_alone(dataset):
    assert same(*(dataset(shuffle=True, augmentation=EVERYTHING) for _ in range(2)))
    first, epoch, seed = (dataset(augmentation=EVERYTHING, seed=seed) for seed in (3, 3, 4))
    epoch.epoch = 1
    assert not same(first, epoch)
    assert not same(first, seed)
    # Chunks of 16 events are shuffled, too: a buffer holds events of few of them.
    begin = (next(iter(dataset(shuffle=True, buffer=8, seed=seed))).event for seed in range(4))
    assert len({int(event.min()) // 16 for event in begin}) > 1


def test_batches_in_order_depend_on_no_ranks_and_chunks(dataset, train_files, tokeniser):
    def contents(n_ranks: int) -> list[list[int]]:
        return sorted(batch for rank in range(n_ranks) for batch in numbers(dataset(rank=rank, n_ranks=n_ranks)))

    assert contents(1) == contents(3)
    one_chunk = EventDataset(survey(train_files, OPTIONS, 1000)[0], options=OPTIONS, tokeniser=tokeniser, batch_size=8)
    assert same(one_chunk, dataset())


@pytest.mark.parametrize("shuffle", [True, False])
def test_training_alone_draws_the_size_of_merged_cells(train_files, shuffle):
    chunks, _ = survey(train_files, OPTIONS, 4)
    merge = Merge(ecal_mm=20.0, hcal_mm=90.0, layers=5, ecal_sizes=[5.0, 40.0])
    config = TokenConfig(hit_features=("ecal", "token_size"), geometry=True, merge=merge)
    tokeniser = Tokeniser.fit(read_chunks(chunks[:2], OPTIONS), config)
    read = EventDataset(chunks, options=OPTIONS, tokeniser=tokeniser, batch_size=4, buffer=4, shuffle=shuffle)
    hits = [batch.batch.hits for batch in read]
    ecal, size = np.concatenate([tokeniser.scales["hits"].invert(of.features[of.mask]) for of in hits]).T
    assert set(size[ecal > 0.5].round(3)) == ({5.0, 40.0} if shuffle else {20.0})


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


def test_a_buffer_that_fills_no_batch_is_an_error(dataset):
    with pytest.raises(ConfigError, match="buffer of 4 events"):
        dataset(shuffle=True, buffer=4)


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
    data = ParticleFlowData(train=train_files, val=val_file, batch_size=10, chunk_size=16, num_workers=workers)
    data.setup("fit")
    loader = data.train_dataloader()
    batches = numbers(loader)
    assert len(batches) == len(loader)
    assert sorted(number for batch in batches for number in batch) == list(range(70))
    data.load_state_dict({"epoch": 0, "n_batches": 3, "batching": data._batching()})
    assert numbers(data.train_dataloader()) == batches[3:]
    data.set_epoch(1)
    assert len([*loader]) == len(batches)


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning", "ignore:.*use of fork:DeprecationWarning")
def test_predictions_come_in_the_order_of_the_files(train_files, val_file):
    """Of two workers they came in turn, by batches of chunks."""
    options = {"batch_size": 10, "chunk_size": 16, "num_workers": 2}
    data = ParticleFlowData(train=train_files, val=val_file, predict=train_files, **options)
    data.setup("fit")
    data.setup("predict")
    batches = numbers(data.predict_dataloader())
    assert [number for batch in batches for number in batch] == list(range(70))


def test_an_epoch_of_other_batches_is_shuffled_anew(train_files, val_file):
    data = ParticleFlowData(train=train_files, val=val_file, batch_size=8, chunk_size=16)
    data.setup("fit")
    state = {"epoch": 4, "n_batches": 3, "batching": data._batching()}
    uuids = dict(data.options.uuids)
    data.options.uuids[train_files[0]] = "another file of this name"
    assert data._batching() != state["batching"]
    data.options.uuids.update(uuids)
    assert data._batching() == state["batching"]
    data.batch_size = 7
    with pytest.warns(UserWarning, match="the rest of its epoch is reshuffled"):
        data.load_state_dict(state)
    loader = data.train_dataloader()
    assert (loader.dataset.epoch, len([*loader])) == (4, 10)


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


def test_chunks_cover_each_file_and_known_files_are_not_looked_at_again(train_files, monkeypatch):
    chunks = survey(train_files, FileOptions(), 16)[0]
    a, b = train_files
    assert chunks == [Chunk(a, 0, 16), Chunk(a, 16, 32), Chunk(a, 32, 40), Chunk(b, 0, 30)]
    assert sum(len(chunk) for chunk in chunks) == 70
    chunks, known = survey(train_files, FileOptions(), 16)
    energies = [events.hits.energy.to_list() for events in read_chunks(chunks, FileOptions())]
    monkeypatch.setattr("pflow.io.open.sniff", None)
    assert [events.hits.energy.to_list() for events in read_chunks(chunks, known)] == energies


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
