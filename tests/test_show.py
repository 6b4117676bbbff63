import os
import sys

from pflow.show import text_facts, text_table


def test_long_cells_and_facts_are_broken_between_words_in_a_terminal(monkeypatch):
    heads, rows = ("value", "from"), [("phi_symmetry", "barrels: ECAL 16 sides, HCAL 16 sides")]
    facts = [("a", "some words and AVeryLong-NameOfACollection"), ("bc", "")]
    assert text_table(heads, rows).splitlines()[1] == "phi_symmetry  barrels: ECAL 16 sides, HCAL 16 sides"
    assert text_facts(facts) == "a   some words and AVeryLong-NameOfACollection\nbc"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((30, 24)))
    broken = ["phi_symmetry", "    barrels: ECAL 16 sides,", "    HCAL 16 sides"]
    assert text_table(heads, rows).splitlines()[1:] == broken
    assert text_facts(facts) == "a   some words and\n    AVeryLong-NameOfACollection\nbc"
