from __future__ import annotations

import awkward as ak
import pytest
import uproot

from pflow.errors import InputError
from pflow.io.columns import Columns, open_root, open_tree


class Tree:
    """Stands for a tree with these keys; gives the key for the array."""

    num_entries = 1

    def __init__(self, *keys: str) -> None:
        self._keys = keys

    def keys(self, recursive: bool) -> tuple[str, ...]:
        return self._keys


@pytest.mark.parametrize("key", ["X/X.energy", "X.energy", "X/energy", "X./X.energy"])
def test_a_member_is_found_wherever_the_file_keeps_it(key):
    assert Columns(Tree(key), "f").key("X", "energy") == key


def test_a_nested_member_is_named_with_dots():
    columns = Columns(Tree("X", "X/X.position", "X/X.position/X.position.x"), "f")
    assert columns.key("X", "position.x") == "X/X.position/X.position.x"


def test_the_first_alternative_that_is_there_counts():
    assert Columns(Tree("X.EDep"), "f").key("X", "eDep", "EDep") == "X.EDep"


def test_a_missing_member_names_the_nearest():
    with pytest.raises(InputError, match=r"has no member 'energi'.*nearest matches: energy") as caught:
        Columns(Tree("X.energy", "X.time"), "f.root").key("X", "energi")
    assert (caught.value.file, caught.value.field) == ("f.root", "X.energi")


def test_a_missing_collection_names_the_nearest():
    with pytest.raises(InputError, match=r"no such collection.*nearest matches: ECALBarrel"):
        Columns(Tree("ECALBarrel.energy"), "f").key("ECalBarrel", "energy")


@pytest.mark.parametrize("layout", ["new", "rntuple"])
def test_all_columns_are_listed(write, content, layout):
    path = write(content, layout)
    with open_root(path) as file:
        columns = Columns(open_tree(file, "events", str(path)), str(path))
    for key in content:
        collection, _, member = key.partition(".")
        assert columns.has(collection, member), key
    assert set(columns.collections) >= {key.partition(".")[0] for key in content}


def test_has_asks_for_all_members():
    columns = Columns(Tree("X.energy"), "f")
    assert columns.has("X")
    assert columns.has("X", "energy")
    assert not columns.has("X", "energy", "time")
    assert not columns.has("Y")


def test_first_prefers_the_order_asked_for():
    columns = Columns(Tree("Y.a", "X.a"), "f")
    assert columns.first("Z", "X", "Y") == "X"
    assert columns.first("Z") is None


@pytest.mark.parametrize("layout", ["new", "rntuple"])
def test_a_range_of_entries_is_read(write, content, layout):
    path = write(content, layout)
    with open_root(path) as directory:
        columns = Columns(open_tree(directory, "events", str(path)), str(path))
        assert columns.get("A2", "energy", start=1, stop=2).to_list() == [[5.0]]
        assert ak.num(columns.get("A2", "position.x", start=0, stop=0), axis=0) == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"hello", r"a\.root: not a ROOT file: it begins with b'hell'"),
        (b"", "not a ROOT file: it is empty"),
        (None, r"a\.root: cannot be opened: No such file"),
    ],
)
def test_something_else_is_refused(tmp_path, content, message):
    if content is not None:
        (tmp_path / "a.root").write_bytes(content)
    with pytest.raises(InputError, match=message):
        open_root(tmp_path / "a.root")


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match="is a folder"):
        open_root(tmp_path)


@pytest.mark.parametrize("keep", [0.02, 0.5, 0.999])
def test_a_truncated_file_is_refused(sample_dir, tmp_path, keep):
    whole = (sample_dir / "gamma1_val_small.root").read_bytes()
    path = tmp_path / "cut.root"
    path.write_bytes(whole[: int(keep * len(whole))])
    with pytest.raises(InputError, match=r"cut\.root: .*truncated"):
        open_root(path)


@pytest.mark.parametrize(("trees", "holds"), [(["Events"], "it holds Events"), ([], "it holds no trees at all")])
def test_a_missing_tree_names_those_that_are_there(tmp_path, trees, holds):
    path = tmp_path / "a.root"
    with uproot.recreate(path) as file:
        file["note"] = "text"
        for name in trees:
            file.mktree(name, {"x": "int32"})
    with open_root(path) as directory, pytest.raises(InputError, match=f"no tree 'events'; {holds}"):
        open_tree(directory, "events", str(path))
