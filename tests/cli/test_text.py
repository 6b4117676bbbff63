from __future__ import annotations

import pytest

from pflow.cli.text import print_facts, print_table


@pytest.fixture
def terminal(monkeypatch):
    """Of 30 columns."""
    monkeypatch.setattr("pflow.cli.text._columns", lambda: 30)


ROWS = [("a", "1.5", "first"), None, ("bcd", "-12.0", ["AVeryLongNameOfACollection", "and more"]), ("e", "", ())]


def test_columns_are_aligned_and_numbers_to_the_right(capsys):
    print_table(("name", "GeV", "collections"), ROWS, title="some")
    assert capsys.readouterr().out.splitlines() == [
        *("", "some"),
        "name    GeV  collections",
        "a       1.5  first",
        "",
        "bcd   -12.0  AVeryLongNameOfACollection",
        "             and more",
        "e",
    ]


@pytest.mark.usefixtures("terminal")
def test_what_does_not_fit_has_its_own_lines(capsys):
    print_table(("name", "GeV", "collections"), ROWS)
    assert capsys.readouterr().out.splitlines() == [
        "name    GeV  collections",
        "a       1.5  first",
        "",
        "bcd   -12.0",
        "    AVeryLongNameOfACollection",
        "    and more",
        "e",
    ]


@pytest.mark.usefixtures("terminal")
def test_facts_are_broken_between_words(capsys):
    print_facts([("a", "some words and AVeryLong-NameOfACollection"), ("bc", "")])
    assert capsys.readouterr().out.splitlines() == [
        "a   some words and",
        "    AVeryLong-NameOfACollection",
        "bc",
    ]
