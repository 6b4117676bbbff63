from __future__ import annotations

import pytest

from pflow.io.edm4hep.collection_id import collection_id
from pflow.io.edm4hep.podio import open_podio


@pytest.mark.parametrize(("name", "count"), [("cld_rec", 104), ("cld_sim", 24), ("cld_zuds100_sim", 24)])
def test_it_is_the_id_that_podio_wrote(data_dir, name, count):
    file = open_podio(data_dir / "edm4hep" / f"{name}.edm4hep.root")
    assert file.ids_stored
    assert len(file.ids) == count
    assert [own for number, own in file.ids.items() if collection_id(own) != number] == []
    file.close()


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", 0), ("a", 0x3C2569B2), ("hello", 0x248BFA47), ("Hello, world!", 0xC0363E43)],
)
def test_it_is_murmurhash3(text, expected):
    """Values that other implementations give."""
    assert collection_id(text) == expected
