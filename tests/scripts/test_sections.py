from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture(scope="module")
def replace_section():
    specification = importlib.util.spec_from_file_location("sections", SCRIPTS / "sections.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module.replace_section


def test_a_new_section_comes_last(replace_section):
    document = replace_section("# Results\n", "a", "first")
    assert document == "# Results\n\n<!-- a: begin -->\nfirst\n<!-- a: end -->\n"


def test_a_section_is_replaced_and_the_others_are_left_alone(replace_section):
    document = "# Results\n"
    for name, body in (("a", "first"), ("b", "second"), ("c", "third")):
        document = replace_section(document, name, body)
    assert replace_section(document, "b", "new\ntext\n") == document.replace("second", "new\ntext")


def test_replacing_by_the_same_changes_nothing(replace_section):
    document = replace_section("# Results\n\ntext after\n", "a", "first")
    assert replace_section(document, "a", "first") == document


@pytest.mark.parametrize(
    "document", ["<!-- a: begin -->\ntext", "text\n<!-- a: end -->", "<!-- a: end -->\n<!-- a: begin -->"]
)
def test_half_a_section_is_an_error(replace_section, document):
    with pytest.raises(ValueError, match="section 'a'"):
        replace_section(document, "a", "new")
