from __future__ import annotations

import pytest
import uproot

from pflow.errors import InputError
from pflow.io.edm4hep.frame_writer import FrameWriter
from pflow.io.edm4hep.input_copy import InputCopy
from pflow.io.edm4hep.podio import open_podio


@pytest.fixture
def copied(write_podio, content, tmp_path):
    """The small file, and a copy of it made entry by entry."""
    original = write_podio(content)
    file = open_podio(original)
    source = InputCopy(file)
    with uproot.recreate(tmp_path / "copy.root") as out:
        collections = [(source.model, collection) for collection in source.collections]
        writer = FrameWriter(out, collections=collections, definitions=source.definitions)
        for entry in range(2):
            frames = source.read(source.collections, entry, entry + 1)
            writer.extend(frames, source.parameters(entry, entry + 1))
        writer.finish(source.categories())
    file.close()
    return original, tmp_path / "copy.root"


@pytest.mark.parametrize("tree", ["events", "metadata", "runs", "podio_metadata"])
def test_a_copy_equals_the_original(copied, tree):
    one, other = (uproot.open(path)[tree] for path in copied)
    assert one.num_entries == other.num_entries
    keys = one.keys(recursive=False)
    assert keys == other.keys(recursive=False)
    for key in keys:
        assert one[key].typename == other[key].typename
        if key != "availableCategories":
            assert one[key].array().to_list() == other[key].array().to_list()
        else:
            assert set(one[key].array()[0]) == set(other[key].array()[0])


def test_a_file_that_does_not_say_its_types_is_refused(write, content):
    file = open_podio(write(content, "rntuple"))
    with pytest.raises(InputError, match=r"does not say the types.*later than 1\.0") as error:
        InputCopy(file)
    file.close()
    assert error.value.field == "podio_metadata"


def test_a_file_of_podio_1_0_is_refused(data_dir):
    """Its table of types consists of tuples."""
    file = open_podio(data_dir / "edm4hep" / "cld_zuds100_sim.edm4hep.root")
    with pytest.raises(InputError, match="does not say the types"):
        InputCopy(file)
    file.close()


def test_a_member_that_is_missing_is_named(write_podio, content):
    file = open_podio(write_podio(content))
    source = InputCopy(file)
    file.columns._keys["A1"].pop("energyError")
    with pytest.raises(InputError, match="energyError"):
        source.read(source.collections, 0, 1)
    file.close()
