from pathlib import Path

import pytest

from pflow.errors import ConfigError, InputError, PflowError, collected_warnings, nearest, reading, warn


def test_errors_say_where_and_the_nearest_names():
    assert nearest("ECalBarrel", ["MUON", "HCALBarrel", "ECALBarrel"], n=2) == ["ECALBarrel", "HCALBarrel"]
    assert nearest("xyz", ["ECALBarrel", "MUON"]) == []
    assert len(nearest("hit_a", [f"hit_{letter}" for letter in "bcdefg"], n=2)) == 2
    error = InputError("no number", file=Path("a.root"), entry=3, field="hits.energy", suggestions=iter(["hits.x"]))
    assert str(error) == "a.root, entry 3, 'hits.energy': no number (nearest matches: hits.x)"
    assert (error.file, error.entry, error.field, error.suggestions) == ("a.root", 3, "hits.energy", ("hits.x",))
    assert str(InputError("wrong", entry=0)) == "entry 0: wrong"
    assert str(InputError("wrong")) == "wrong"


def test_errors_of_other_libraries_on_a_file_are_input_errors():
    with pytest.raises(InputError, match=r"^a.root, entry 3, 'x': damaged: KeyError: 'y'$") as caught, read():
        raise KeyError("y")
    assert isinstance(caught.value.__cause__, KeyError)
    for error in (ConfigError("no such option"), InputError("wrong", file="b.root")):
        with pytest.raises(PflowError) as caught, read():
            raise error
        assert caught.value is error
        assert isinstance(error, ValueError)


def test_what_was_collected_before_an_error_is_said():
    with pytest.warns(UserWarning, match="no tracks are read"), pytest.raises(ConfigError, match="reads tracks"):
        warn_and_fail()


def warn_and_fail():
    with collected_warnings():
        warn("no tracks are read")
        raise ConfigError("the model reads tracks")


def read():
    return reading("damaged", file="a.root", entry=3, field="x")
