from __future__ import annotations

import dataclasses
import shutil

import pytest

from pflow.errors import InputError
from pflow.io.prepared.manifest import NAME, load_manifest, write_manifest


def test_what_is_read_is_what_was_written(prepared, tmp_path):
    manifest = load_manifest(prepared)
    write_manifest(tmp_path, manifest)
    assert load_manifest(tmp_path) == manifest
    changed = dataclasses.replace(manifest, shards=manifest.shards[:1])
    write_manifest(tmp_path, changed)
    assert load_manifest(tmp_path) == changed


def test_shards_are_in_the_folder_of_their_input(prepared):
    manifest = load_manifest(prepared)
    assert manifest.planned == [(0, 0, 6), (1, 0, 8), (1, 8, 16), (1, 16, 24), (1, 24, 25)]
    assert str(manifest.path_of(1, 8)) == "00001/multi_test_small.root/00001.arrow"
    assert [len(shards) for shards in manifest.shards_of.values()] == [1, 4]
    assert all((prepared / manifest.path_of(number, start)).is_file() for number, start, _ in manifest.planned)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"truth_tracks": True}, "truth_tracks: False and True"),
        ({"block_size": 5}, "block_size: 4 and 5"),
        ({"shards": ()}, None),
        ({"inputs": ()}, "number of inputs: 2 and 0"),
        ({"layout": None}, "layout: g4 and None"),
    ],
)
def test_the_first_difference_is_named(prepared, change, said):
    manifest = load_manifest(prepared)
    assert manifest.difference(dataclasses.replace(manifest, **change)) == said


def test_a_changed_input_is_named(prepared):
    manifest = load_manifest(prepared)
    changed = dataclasses.replace(manifest.inputs[1], bytes=1)
    other = dataclasses.replace(manifest, inputs=(manifest.inputs[0], changed))
    assert "bytes of" in manifest.difference(other)
    assert "multi_test_small.root: " in manifest.difference(other)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('"format": 1', '"format": 2', "of format 1, found prepared events of format 2"),
        ("prepared events", "something", "found something of format 1"),
        ('"shards"', '"shard"', "unknown field 'shard'"),
        ("{", "", "expected the manifest of prepared events"),
    ],
)
def test_other_content_is_refused(prepared, tmp_path, before, after, message):
    shutil.copy(prepared / NAME, tmp_path)
    text = (tmp_path / NAME).read_text()
    (tmp_path / NAME).write_text(text.replace(before, after, 1))
    with pytest.raises((InputError, ValueError), match=message) as raised:
        load_manifest(tmp_path)
    assert NAME in str(raised.value)
