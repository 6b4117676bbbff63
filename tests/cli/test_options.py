from __future__ import annotations

import argparse
from importlib import import_module

import pytest

from pflow.calibration.decoding_options import CRITERIA
from pflow.cli.main import LIGHTNING, VERBS
from pflow.cli.options import OPTIONS, add_options, at_least
from pflow.data.prepare import BLOCK_SIZE, SHARD_SIZE
from pflow.event.truth import RULES
from pflow.inference.events import BATCH_SIZE
from pflow.io.particles_root import FORMATS
from pflow.metrics.match import COSTS
from pflow.plots.scene import COLOUR_BY


def actions(verb: str) -> list[argparse.Action]:
    parser = argparse.ArgumentParser()
    import_module(f"pflow.cli.{verb}").add_arguments(parser)
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
    ("verb", "option", "default"),
    [
        ("prepare", "chunk_size", BLOCK_SIZE),
        ("prepare", "shard_size", SHARD_SIZE),
        ("reconstruct", "batch_size", BATCH_SIZE),
    ],
)
def test_defaults_are_those_of_what_runs(verb, option, default):
    (action,) = (action for action in actions(verb) if action.dest == option)
    assert action.default == default


@pytest.mark.parametrize("text", ["0", "-3", "many", "1.5"])
def test_a_number_that_is_too_small_or_none_is_wrong_usage(text, capsys):
    parser = argparse.ArgumentParser()
    parser.add_argument("--chunk-size", type=at_least(1))
    with pytest.raises(SystemExit):
        parser.parse_args([f"--chunk-size={text}"])
    assert "argument --chunk-size: " in capsys.readouterr().err
