import argparse
import contextlib
from importlib import import_module

import pytest

from pflow.calibration import CRITERIA
from pflow.cli.main import LIGHTNING, MODULES, OPTIONS, VERBS, add_options, at_least, progress_bar
from pflow.event.truth import RULES
from pflow.io.particles_root import FORMATS
from pflow.metrics.match import COSTS
from pflow.plots.display import COLOUR_BY


def actions(verb: str) -> list[argparse.Action]:
    parser = argparse.ArgumentParser()
    getattr(import_module(f"pflow.cli.{MODULES[verb]}"), f"{verb}_arguments")(parser)
    return parser._actions


@pytest.mark.parametrize("verb", sorted(set(VERBS) - set(LIGHTNING)))
def test_options_are_named_alike_in_all_verbs(verb):
    reference = argparse.ArgumentParser()
    add_options(reference, *OPTIONS)
    common = {option: action for action in reference._actions for option in action.option_strings}
    for action in actions(verb):
        for option in action.option_strings:
            assert "_" not in option
            if option in common:
                assert action.dest == common[option].dest
                assert action.choices == common[option].choices
                assert getattr(action.type, "__name__", None) == getattr(common[option].type, "__name__", None)


@pytest.mark.parametrize(
    ("verb", "option", "choices"),
    [
        ("calibrate", "choose_by", CRITERIA),
        ("display", "colour", COLOUR_BY),
        ("evaluate", "match", (*(COSTS.keys() - {"angle"}), "hits")),  # angle: for jets
        ("evaluate", "rule", RULES),
        ("reconstruct", "format", (*FORMATS, "edm4hep")),
    ],
)
def test_choices_are_those_of_what_runs(verb, option, choices):
    """They are written out where options are declared, so that ``--help`` need not import what runs."""
    (action,) = (action for action in actions(verb) if action.dest == option)
    assert set(action.choices) == set(choices)


@pytest.mark.parametrize(
    ("smallest", "text"), [(0.0, "-0.1"), (0.0, "nan"), (0.0, "much"), (1, "0"), (1, "-3"), (1, "many"), (1, "1.5")]
)
def test_a_number_that_is_too_small_or_none_is_wrong_usage(smallest, text, capsys):
    parser = argparse.ArgumentParser()
    parser.add_argument("--chunk-size", type=at_least(smallest))
    with pytest.raises(SystemExit):
        parser.parse_args([f"--chunk-size={text}"])
    assert "argument --chunk-size: " in capsys.readouterr().err


@pytest.mark.parametrize(("quiet", "error"), [(False, False), (False, True), (True, False)])
def test_a_bar_shows_how_much_is_done_and_is_wiped_out_after_an_error(quiet, error, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in a terminal
    with contextlib.suppress(KeyboardInterrupt), progress_bar(quiet=quiet) as show:
        show("cells=2", 1, 4)
        if error:
            raise KeyboardInterrupt
    out, err = capsys.readouterr()
    assert out == ""
    assert ("cells=2" in err and "1/4" in err) is not quiet
    assert err.endswith("\x1b[1A\x1b[2K") is error  # up, and the line is erased
