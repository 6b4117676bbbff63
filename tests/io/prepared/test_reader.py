from __future__ import annotations

import dataclasses
import shutil

import pytest

from pflow.errors import InputError
from pflow.io.open import open_events, read_events
from pflow.io.prepared.manifest import NAME, load_manifest, write_manifest
from pflow.io.prepared.reader import is_prepared, prepared_inputs
from pflow.io.reader import Reader
from pflow.physics.detector import load_detector


def test_prepared_events_are_those_of_the_file(same, prepared, sample_dir):
    path = str(sample_dir / "multi_test_small.root")
    with open_events(path) as file, open_events(prepared_inputs(str(prepared))[1]) as again:
        for name in ("schema", "num_entries", "uuid", "detector", "absent", "truth_tracks"):
            assert getattr(file, name) == getattr(again, name)
        for start, stop in ((0, 8), (5, 20), (0, 25), (24, 99), (25, 25)):
            for truth in (True, False):
                ours, theirs = file.read(start, stop, truth=truth), again.read(start, stop, truth=truth)
                assert same(ours, theirs)
                assert (ours.path, ours.absent) == (theirs.path, theirs.absent)
        assert isinstance(again._reader, Reader)


def test_which_paths_are_prepared(prepared, sample_dir):
    inputs = prepared_inputs(str(prepared))
    assert [path.removeprefix(str(prepared)) for path in inputs] == [
        "/00000/zqq_test_small.root",
        "/00001/multi_test_small.root",
    ]
    assert all(map(is_prepared, inputs))
    for path in (str(sample_dir), str(sample_dir / "zqq_test_small.root"), "root://server//file.root", "absent"):
        assert not is_prepared(path)
        assert prepared_inputs(path) == [path]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"detector": "cld"}, r"manifest\.json, 'detector': .*ild_g4.*cld"),
        ({"truth_tracks": True}, "'truth_tracks': .*False.*True"),
        ({"schema": "edm4hep"}, "'schema': .*flat.*edm4hep"),
        ({"layout": "cld_g4"}, "'layout': .*g4.*cld_g4"),
    ],
)
def test_other_events_than_those_asked_for_are_refused(prepared, asked, message):
    with pytest.raises(InputError, match=message):
        open_events(prepared_inputs(str(prepared))[0], **asked)


def test_what_was_asked_for_is_accepted(prepared):
    path = prepared_inputs(str(prepared))[0]
    assert len(read_events(path, detector="ild_g4", schema="flat", layout="g4")) == 6
    changed = dataclasses.replace(load_detector("ild_g4"), b_field=3.0)
    with pytest.raises(InputError, match="'detector'"):
        open_events(path, detector=changed)


def test_an_unfinished_folder_is_refused(prepared, tmp_path):
    folder = tmp_path / "events"
    shutil.copytree(prepared, folder)
    manifest = load_manifest(folder)
    write_manifest(folder, dataclasses.replace(manifest, shards=manifest.shards[:3]))
    with pytest.raises(InputError, match="2 of 5 shards are missing: `pflow prepare` was interrupted"):
        open_events(prepared_inputs(str(folder))[1])


def test_a_missing_shard_is_named(prepared, tmp_path):
    folder = tmp_path / "events"
    shutil.copytree(prepared, folder)
    (folder / load_manifest(folder).path_of(1, 8)).unlink()
    with open_events(prepared_inputs(str(folder))[1]) as file:
        assert len(file.read(0, 8)) == 8
        with pytest.raises(InputError, match=r"multi_test_small\.root/00001\.arrow"):
            file.read(0, 9)
    assert (folder / NAME).is_file()
