from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest

from pflow.cli.main import LIGHTNING, VERBS, main


def test_version_comes_from_the_package(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"pflow {version('pflow')}\n"


def test_help_lists_every_verb(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(verb in shown for verb in VERBS)


def test_no_verb_is_wrong_usage(capsys):
    assert main([]) == 2


def test_misspelt_verb_names_the_nearest(capsys):
    assert main(["reconstrct"]) == 2
    assert "Did you mean 'reconstruct'?" in capsys.readouterr().err


@pytest.mark.parametrize("verb", sorted(set(VERBS) - set(LIGHTNING)))
def test_every_command_explains_itself(verb, capsys):
    with pytest.raises(SystemExit) as exit_:
        main([verb, "--help"])
    assert exit_.value.code == 0
    assert f"pflow {verb}" in capsys.readouterr().out


def test_an_input_error_is_one_line_without_traceback(capsys, tmp_path):
    assert main(["inspect", str(tmp_path / "absent.root")]) == 1
    error = capsys.readouterr().err
    assert "absent.root" in error
    assert "Traceback" not in error


def test_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "pflow", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"pflow {version('pflow')}\n"


def test_importing_pflow_loads_no_heavy_library():
    heavy = ("torch", "uproot", "awkward", "matplotlib")
    code = f"import sys, pflow, pflow.cli.main; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
