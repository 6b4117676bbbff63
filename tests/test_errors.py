from pathlib import Path

import pytest

from pflow.errors import ConfigError, InputError, PflowError, check_choice, check_fields, first_line, nearest, reading


def test_the_nearest_names_come_first_whatever_their_case():
    assert nearest("ECalBarrel", ["MUON", "HCALBarrel", "ECALBarrel"], n=2) == ["ECALBarrel", "HCALBarrel"]
    assert nearest("xyz", ["ECALBarrel", "MUON"]) == []
    assert len(nearest("hit_a", [f"hit_{letter}" for letter in "bcdefg"], n=2)) == 2


def test_an_input_error_says_where_and_keeps_its_parts():
    error = InputError("no number", file=Path("a.root"), entry=3, field="hits.energy", suggestions=iter(["hits.x"]))
    assert str(error) == "a.root, entry 3, 'hits.energy': no number (nearest matches: hits.x)"
    assert (error.file, error.entry, error.field, error.suggestions) == ("a.root", 3, "hits.energy", ("hits.x",))
    assert str(InputError("wrong", entry=0)) == "entry 0: wrong"
    assert str(InputError("wrong")) == "wrong"


@pytest.mark.parametrize("kind", [ConfigError, InputError])
def test_errors_can_be_caught_as_ours_and_as_value_errors(kind):
    assert issubclass(kind, PflowError)
    assert issubclass(kind, ValueError)


@pytest.mark.parametrize(
    ("error", "text"), [(OSError(" truncated\nfor many reasons"), "OSError: truncated"), (KeyError(), "KeyError")]
)
def test_the_first_line_of_an_error_is_enough(error, text):
    assert first_line(error) == text


def test_a_wrong_choice_names_all_and_the_nearest():
    with pytest.raises(ConfigError, match=r"no order 'enrgy': expected one of energy, pt \(nearest matches: energy\)"):
        check_choice("enrgy", ["energy", "pt"], "order")


def test_an_unknown_field_names_the_nearest_or_all():
    with pytest.raises(ConfigError, match=r"a.yaml: unknown field 'enrgy' \(nearest matches: energy\)"):
        check_fields(["pt", "enrgy"], ["energy", "pt"], "a.yaml")
    with pytest.raises(ConfigError, match=r"unknown field 'q'; expected some of energy, pt$"):
        check_fields(["q"], ["energy", "pt"], "a.yaml")


def test_what_other_libraries_raise_on_a_file_is_an_input_error():
    with pytest.raises(InputError, match=r"^a.root, entry 3, 'x': damaged: KeyError: 'y'$") as caught, read():
        raise KeyError("y")
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("error", [ConfigError("no such option"), InputError("wrong", file="b.root")])
def test_our_own_errors_pass_unchanged(error):
    with pytest.raises(type(error)) as caught, read():
        raise error
    assert caught.value is error


def read():
    return reading("damaged", file="a.root", entry=3, field="x")
