from unittest.mock import MagicMock

import numpy as np
import pytest
import uproot

from pflow.errors import InputError
from pflow.io import root
from pflow.io.open import read_events
from pflow.io.root import earlier_trees, open_root, open_tree, read_branch, read_note, read_ranges, write_note


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"hello", r"a\.root: not a ROOT file: it begins with b'hell'"), (b"", "not a ROOT file: it is empty")],
)
def test_something_else_is_refused(tmp_path, content, message):
    (tmp_path / "a.root").write_bytes(content)
    with pytest.raises(InputError, match=message):
        open_root(tmp_path / "a.root")


def test_packed_numbers_of_root_are_read(sample_dir):
    """Of Float16_t, Double32_t with a range and without one, as ROOT wrote them: tests/data/README.md."""
    events = read_events(sample_dir / "packed_numbers.root", layout="g4")
    assert events.hits.energy.to_list() == [[], [pytest.approx(0.1, rel=1e-3)], pytest.approx([0.1, 1.6], rel=1e-3)]
    assert events.hits.position.x[2].to_list() == pytest.approx([1900.25, 1901.25], abs=1e-3)
    assert events.hits.position.y[2].to_list() == [0, -500.5]


def test_a_file_that_is_not_there_names_the_nearest(tmp_path):
    (tmp_path / "zqq_1.root").touch()
    with pytest.raises(InputError, match=r"rot: cannot be opened: No such file or directory \(nearest matches: zqq_1"):
        open_root(tmp_path / "zqq_1.rot")


@pytest.mark.parametrize("keep", [0.02, 0.5, 0.999])
def test_a_truncated_file_is_refused(sample_dir, tmp_path, keep):
    data = (sample_dir / "gamma1_val_small.root").read_bytes()
    path = tmp_path / "cut.root"
    path.write_bytes(data[: int(keep * len(data))])
    with pytest.raises(InputError, match=r"cut\.root: .*truncated"):
        open_root(path)


@pytest.mark.parametrize(("trees", "holds"), [(["Events"], "it holds Events"), ([], "it holds no trees at all")])
def test_a_missing_tree_names_the_existing_ones(tmp_path, trees, holds):
    path = tmp_path / "a.root"
    with uproot.recreate(path) as file:
        file["note"] = "text"
        for name in trees:
            file.mktree(name, {"x": "int32"})
    with open_root(path) as directory, pytest.raises(InputError, match=f"no tree 'events'; {holds}"):
        open_tree(directory, "events", str(path))


@pytest.mark.parametrize("kind", ["mktree", "mkrntuple"])
def test_an_earlier_tree_of_the_same_name_is_said_unless_it_is_a_backup(tmp_path, kind):
    path = tmp_path / "a.root"
    for mode, n in ((uproot.recreate, 3), (uproot.update, 2)):
        with mode(path) as file:
            getattr(file, kind)("events", {"x": np.arange(n)})
    with open_root(path) as directory:
        tree = open_tree(directory, "events", str(path))
        assert (
            "events;1 with 3 entries is in the file, too, and only"
            in earlier_trees(directory, "events", tree)["cycles"]
        )
        backup = MagicMock(**{"keys.return_value": ["events;2", "events;1"], "__getitem__": lambda *_: tree})
        assert not earlier_trees(backup, "events", tree)


def test_a_note_comes_back(tmp_path):
    content = {"text": "ä" * 100_000, "numbers": [1, 2.5, None], "deep": {"yes": True}}
    with uproot.recreate(tmp_path / "a.root") as file:
        write_note(file, "note", content)
    with uproot.open(tmp_path / "a.root") as file:
        assert read_note(file, "note", "a.root") == content


@pytest.mark.parametrize(
    ("text", "found"), [("{broken", "expected a JSON object: JSONDecodeError"), ("3", "found int")]
)
def test_another_text_is_an_error(tmp_path, text, found):
    with uproot.recreate(tmp_path / "a.root") as file:
        file["note"] = text
    with uproot.open(tmp_path / "a.root") as file, pytest.raises(InputError, match=f"a.root, 'note': .*{found}"):
        read_note(file, "note", "a.root")


def test_a_branch_that_cannot_be_read_names_everything(sample_dir):
    with uproot.open(sample_dir / "multi_test_small.root") as file, pytest.raises(InputError) as caught:
        read_branch(file["events"], "nothing", 3, 5, "a.root")
    assert (caught.value.file, caught.value.entry, caught.value.field) == ("a.root", 3, "nothing")


@pytest.mark.parametrize("kind", ["mktree", "mkrntuple"])
@pytest.mark.parametrize(
    ("size", "most", "expected"),
    [
        (3, None, [(0, 5), (5, 10), (10, 12)]),
        (6, None, [(0, 10), (10, 12)]),
        (2, 4, [(0, 2), (2, 4), (4, 5), (5, 7), (7, 9), (9, 10), (10, 12)]),
        (100, None, [(0, 12)]),
    ],
    ids=["one basket each", "two baskets", "a basket that is too large", "all"],
)
def test_ranges_end_where_baskets_end(tmp_path, kind, size, most, expected):
    with uproot.recreate(tmp_path / "a.root") as file:
        tree = getattr(file, kind)("events", {"x": "int64"})
        for n in (5, 5, 2):
            tree.extend({"x": list(range(n))})
    with open_root(tmp_path / "a.root") as file:
        assert read_ranges(open_tree(file, "events", "a.root"), size, most) == expected


def test_a_damaged_list_of_pages_is_found_before_memory_is_taken(tmp_path):
    """One that declares a billion values, where there are five."""
    path = tmp_path / "a.root"
    with uproot.recreate(path, compression=None) as file:
        file.mkrntuple("events", {"x": "int64"}).extend({"x": list(range(5))})
    with open_root(path) as file:
        list_of_pages = file["events"].footer.cluster_group_records[0].page_list_link.locator
    content = bytearray(path.read_bytes())
    five = content.index((5).to_bytes(4, "little"), list_of_pages.offset + 48)
    content[five : five + 4] = (2**30).to_bytes(4, "little")
    path.write_bytes(content)
    with open_root(path) as file, pytest.raises(InputError, match="a list of pages differs from its checksum"):
        open_tree(file, "events", str(path))


def test_large_baskets_are_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(root, "MAX_READ", 64)
    with uproot.recreate(tmp_path / "a.root") as file:
        file.mktree("events", {"x": "int64"}).extend({"x": list(range(100))})
    with open_root(tmp_path / "a.root") as file:
        assert read_ranges(open_tree(file, "events", "a.root"), 40) == [(0, 40), (40, 80), (80, 100)]


def test_too_few_entries_are_damage(tmp_path, monkeypatch):
    with uproot.recreate(tmp_path / "a.root") as file:
        file.mktree("events", {"x": np.arange(2)})
    with open_root(tmp_path / "a.root") as file:
        tree = file["events"]
        monkeypatch.setitem(tree._members, "fEntries", 10**15)
        monkeypatch.setattr(type(file), "__getitem__", lambda *_: tree)
        with pytest.raises(InputError, match=rf"'events': {10**15} entries are declared, the branches have 2"):
            open_tree(file, "events", "a.root")
