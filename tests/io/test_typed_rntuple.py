from __future__ import annotations

import awkward as ak
import numpy as np
import pytest
import uproot
from uproot.writing import _cascadentuple

from pflow.errors import ConfigError
from pflow.io.typed_rntuple import make_typed_rntuple


@pytest.fixture
def points():
    inner = ak.zip({"x": ak.Array([[1.0], [2.0, 3.0]])}, with_name="my::Point")
    return ak.zip({"at": inner, "n": ak.Array([[1], [2, 3]])}, with_name="my::Hit", depth_limit=2)


def test_records_are_structs_with_the_names_of_their_types(points, tmp_path):
    table = ak.zip({"hits": points}, depth_limit=1)
    with uproot.recreate(tmp_path / "a.root") as file:
        make_typed_rntuple(file, "events", table.layout.form).extend(table)
    events = uproot.open(tmp_path / "a.root")["events"]
    assert events["hits"].typename == "std::vector<my::Hit>"
    assert events["hits.at"].typename == "my::Point"
    assert events["hits.at.x"].array().to_list() == [[1.0], [2.0, 3.0]]


def test_others_are_written_as_uproot_does(points, tmp_path):
    plain = ak.zip({"x": np.arange(2.0), "y": points.n}, depth_limit=1)
    with uproot.recreate(tmp_path / "a.root") as file:
        make_typed_rntuple(file, "typed", plain.layout.form).extend(plain)
        file.mkrntuple("untyped", plain)
    file = uproot.open(tmp_path / "a.root")
    assert [file["typed"][key].typename for key in "xy"] == [file["untyped"][key].typename for key in "xy"]


def test_uproot_is_left_as_it_was(points, tmp_path):
    before = _cascadentuple._cpp_typename
    with uproot.recreate(tmp_path / "a.root") as file:
        make_typed_rntuple(file, "events", ak.zip({"hits": points}, depth_limit=1).layout.form)
    assert _cascadentuple._cpp_typename is before


def test_an_uproot_without_that_function_is_refused(points, tmp_path, monkeypatch):
    monkeypatch.delattr(_cascadentuple, "_cpp_typename")
    with uproot.recreate(tmp_path / "a.root") as file, pytest.raises(ConfigError, match=r"uproot \d.*cannot write"):
        make_typed_rntuple(file, "events", ak.zip({"hits": points}, depth_limit=1).layout.form)


def test_an_uproot_that_ignores_it_is_refused(points, tmp_path, monkeypatch):
    """Should the header be made elsewhere one day."""
    records = _cascadentuple.NTuple_Field_Description

    def untyped(parent, role, name, type_name, **more):
        return records(parent, role, name, type_name.replace("my::", ""), **more)

    monkeypatch.setattr(_cascadentuple, "NTuple_Field_Description", untyped)
    with uproot.recreate(tmp_path / "a.root") as file, pytest.raises(ConfigError, match="cannot write structs"):
        make_typed_rntuple(file, "events", ak.zip({"hits": points}, depth_limit=1).layout.form)
