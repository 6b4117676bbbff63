from __future__ import annotations

import pytest
import uproot

from pflow.errors import InputError
from pflow.io.rootfile import read_branch, read_note, write_note


def test_a_note_comes_back(tmp_path):
    content = {"text": "ä" * 100_000, "numbers": [1, 2.5, None], "deep": {"yes": True}}
    with uproot.recreate(tmp_path / "a.root") as file:
        write_note(file, "note", content)
    with uproot.open(tmp_path / "a.root") as file:
        assert read_note(file, "note", "a.root") == content


def test_no_note_is_none(tmp_path):
    with uproot.recreate(tmp_path / "a.root") as file:
        write_note(file, "other", {})
    with uproot.open(tmp_path / "a.root") as file:
        assert read_note(file, "note", "a.root") is None


@pytest.mark.parametrize(
    ("text", "found"), [("{broken", "expected a JSON object: JSONDecodeError"), ("3", "found int")]
)
def test_another_text_is_an_error(tmp_path, text, found):
    with uproot.recreate(tmp_path / "a.root") as file:
        file["note"] = text
    with uproot.open(tmp_path / "a.root") as file, pytest.raises(InputError, match=f"a.root, 'note': .*{found}"):
        read_note(file, "note", "a.root")


def test_what_json_cannot_hold(tmp_path):
    with uproot.recreate(tmp_path / "a.root") as file, pytest.raises(TypeError, match="not JSON serializable"):
        write_note(file, "note", {"a": object()})


def test_a_range_of_a_branch(sample_dir):
    with uproot.open(sample_dir / "multi_test_small.root") as file:
        tree = file["events"]
        part = read_branch(tree, "calo_hit.energy", 3, 5, "a.root")
        assert part.to_list() == tree["calo_hit.energy"].array()[3:5].to_list()


def test_a_branch_that_cannot_be_read_names_everything(sample_dir):
    with uproot.open(sample_dir / "multi_test_small.root") as file, pytest.raises(InputError) as caught:
        read_branch(file["events"], "nothing", 3, 5, "a.root")
    assert (caught.value.file, caught.value.entry, caught.value.field) == ("a.root", 3, "nothing")
