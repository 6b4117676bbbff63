from __future__ import annotations

import dataclasses
import shutil

import pytest
import torch

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from pflow.data import prepare
from pflow.data.datamodule import ParticleFlowData
from pflow.data.files import FileOptions
from pflow.data.prepare import prepare_events
from pflow.errors import ConfigError, InputError
from pflow.event import jagged
from pflow.event.augment import Augmentation, Overlay
from pflow.event.merge_hits import Merge
from pflow.event.skipped import BadEntriesWarning
from pflow.io.events_root import write_events
from pflow.io.open import open_events, read_events
from pflow.io.prepared.manifest import NAME, load_manifest

EVERYTHING = Augmentation(rotate=True, reflect=True, overlay=Overlay(frequencies=[1, 1, 1]))


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "prepared"


@pytest.fixture(scope="module")
def files(sample_dir, tmp_path_factory) -> list[str]:
    """Two files of the same name: 10 events, and 5 others."""
    events = read_events(sample_dir / "multi_test_small.root", entry_stop=15)
    paths = [tmp_path_factory.mktemp("files") / "multi.root" for _ in range(2)]
    for path, some in zip(paths, (events[:10], events[10:]), strict=True):
        write_events(path, some)
    return [str(path) for path in paths]


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


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.parametrize("more", [{}, {"num_workers": 2, "augment": EVERYTHING}])
def test_batches_are_those_of_the_files(files, folder, more):
    prepare_events(files, folder, FileOptions(), block_size=4, shard_size=8)
    found = []
    for source in (files, str(folder)):
        data = ParticleFlowData(
            train=source,
            val=source,
            chunk_size=4,
            batch_size=3,
            buffer=9,
            order="tracks_first",
            track_features=["log_p", "nx", "ny", "nz"],
            tracker_hit_features=["x", "y", "z"],
            merge=Merge(ecal_mm=20.0, hcal_mm=90.0, layers=10),
            repeat={"multi*": 2},
            **more,
        )
        data.setup("fit")
        data.use_readout(True)
        loaders = data.train_dataloader(), data.val_dataloader()
        batches = [[list(tensors(batch)) for batch in loader] for loader in loaders]
        found.append((batches, data.tokeniser, data._digest()))
    assert found[0] == found[1]
    assert len(found[0][0][0]) >= 30 / 3


def test_a_run_that_was_interrupted_goes_on(files, folder, monkeypatch):
    write, times = prepare.write_shard, []

    def interrupted(path, blocks):
        if len(times) == 2:
            next(iter(blocks))
            path.write_bytes(b"half")
            raise KeyboardInterrupt
        times.append(path)
        return write(path, blocks)

    monkeypatch.setattr(prepare, "write_shard", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepare_events(files, folder, FileOptions(), shard_size=6)
    assert len(load_manifest(folder).shards) == 2
    assert len(list(folder.rglob("*.arrow"))) == len(list(folder.rglob("*.arrow*"))) == 2
    made = {path: path.stat().st_mtime_ns for path in folder.rglob("*.arrow")}
    monkeypatch.setattr(prepare, "write_shard", write)
    done = []
    again = prepare_events(files, folder, FileOptions(), shard_size=6, on_progress=lambda *n: done.append(n))
    assert len(again.shards) == 3
    assert all(path.stat().st_mtime_ns == time for path, time in made.items())
    assert done == [(6, 15), (10, 15), (15, 15)]
    undisturbed = prepare_events(files, folder.with_name("other"), FileOptions(), shard_size=6)
    assert undisturbed == again == load_manifest(folder)


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
def test_processes_make_the_same(files, folder):
    found = [
        prepare_events(files, folder.with_name(str(n)), FileOptions(), shard_size=6, num_workers=n) for n in (0, 2)
    ]
    assert found[0] == found[1]


def test_a_damaged_shard_is_made_anew_and_the_others_stay(files, folder):
    manifest = prepare_events(files, folder, FileOptions(), shard_size=6)
    paths = [folder / manifest.path_of(number, start) for number, start, _ in manifest.planned]
    whole = paths[1].read_bytes()
    paths[1].write_bytes(whole[: len(whole) // 2] + b"\0" * (len(whole) - len(whole) // 2))
    times = [path.stat().st_mtime_ns for path in paths]
    assert prepare_events(files, folder, FileOptions(), shard_size=6) == manifest
    assert [path.stat().st_mtime_ns == time for path, time in zip(paths, times, strict=True)] == [
        True,
        False,
        True,
    ]
    assert paths[1].read_bytes() == whole


def test_entries_that_were_refused_are_refused_again(sample_dir, folder, tmp_path):
    events = read_events(sample_dir / "multi_test_small.root", entry_stop=6)
    energy = jagged.flat(events.hits.energy).copy()
    energy[jagged.offsets(jagged.count(events.hits))[2]] = -1.0
    bad = dataclasses.replace(events, hits=jagged.replaced(events.hits, {"energy": energy}))
    path = str(tmp_path / "bad.root")
    write_events(path, bad)
    with pytest.raises(InputError, match="entry 2"):
        prepare_events([path], folder, FileOptions())
    shutil.rmtree(folder)
    with pytest.warns(BadEntriesWarning, match="1 of 6 entries"):
        prepare_events([path], folder, FileOptions(on_error="skip"))
    for source in (path, str(folder / "00000" / "bad.root")):
        with open_events(source) as file:
            assert len(file.read(3, 6)) == 3
            with pytest.raises(InputError, match=r"bad\.root, entry 2, 'hits\.energy': expected at least 0 GeV"):
                file.read()
            with pytest.warns(BadEntriesWarning, match=r"1 of 6 .*bad\.root, entry 2, 'hits\.energy'"):
                assert file.read(on_error="skip").flags.tolist() == [0, 0, 1, 0, 0, 0]


def test_other_settings_need_another_folder(files, folder):
    prepare_events(files, folder, FileOptions())
    with pytest.raises(ConfigError, match="shard_size: 2048 and 7"):
        prepare_events(files, folder, FileOptions(), shard_size=7)
    with pytest.raises(ConfigError, match="number of inputs: 2 and 1"):
        prepare_events(files[:1], folder, FileOptions())


def test_a_folder_of_something_else_is_refused(files, folder):
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="not empty"):
        prepare_events(files, folder, FileOptions())
    assert not (folder / NAME).exists()


def test_files_of_two_detectors_need_two_folders(sample_dir, files, folder):
    with pytest.raises(ConfigError, match=r"'ild_g4' and .* of 'cld'"):
        prepare_events([files[0], str(sample_dir / "cld_multi_test_small.root")], folder, FileOptions())


def test_impossible_sizes(files, folder):
    with pytest.raises(ConfigError, match="at least 1 event, found 0 and 2048"):
        prepare_events(files, folder, FileOptions(), block_size=0)


def test_a_disk_that_is_full(files, folder, largest_file):
    with largest_file(100_000), pytest.raises(OSError, match="00000"):
        prepare_events(files, folder, FileOptions())
    assert not list(folder.rglob("*.arrow*"))
    assert len(prepare_events(files, folder, FileOptions()).shards) == 2


def test_without_pyarrow_the_extra_is_named(files, folder, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.ipc", None)
    with pytest.raises(ConfigError, match=r"pip install 'pflow\[prepare\]'"):
        prepare_events(files, folder, FileOptions())
