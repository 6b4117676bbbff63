import dataclasses
import io
import logging
import re
import signal
import subprocess
import sys
import time
import warnings
from importlib.metadata import version
from unittest.mock import Mock

import numpy as np
import pytest

from pflow.cli.main import EXIT_CODES, LIGHTNING, SIGNALS, VERBS, main, raised_signals
from pflow.errors import InputError
from pflow.io.flat import write_events
from pflow.io.open import read_events


def test_help_lists_verbs_and_exit_codes_and_names_the_nearest_verb(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(verb in shown for verb in VERBS)
    assert all(f"  {code} " in shown and text in shown for code, text in EXIT_CODES.items())
    assert "--debug" in shown
    assert main([]) == main(["reconstrct"]) == 2
    assert "Did you mean 'reconstruct'?" in capsys.readouterr().err


@pytest.mark.parametrize("verb", sorted(set(VERBS) - set(LIGHTNING)))
def test_every_command_has_help_and_names_a_wrong_option(verb, capsys):
    with pytest.raises(SystemExit, match="0"):
        main([verb, "--help"])
    assert f"pflow {verb}" in capsys.readouterr().out
    right = {"inspect": "--detector", "convert": "--chunk-size"}.get(verb, "--output")
    with pytest.raises(SystemExit, match="2"):
        main([verb, f"{right[:-1]}=x"])
    assert f"error: unrecognized arguments: {right[:-1]} (nearest matches: {right}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "output"),
    [
        ("reconstruct IN -o OUT", "reco.root"),
        ("evaluate IN --truth IN -o FOLDER", "metrics.json"),
        ("evaluate IN --truth IN -o FOLDER", "report.html"),
        ("convert IN OUT", "flat.root"),
        ("detector IN -o OUT", "mine.yaml"),
        ("display IN -o OUT", "event.png"),
        ("calibrate IN --checkpoint general -o FOLDER", "model.json"),
        ("export --checkpoint general --format weights -o FOLDER", "model.json"),
        ("export --checkpoint general -o FOLDER", "tokens.json"),
    ],
)
def test_every_verb_refuses_an_existing_output_before_any_work(words, output, sample_dir, tmp_path, capsys):
    path = tmp_path / "made" / output
    path.parent.mkdir()
    path.write_text("precious")
    named = {"IN": str(sample_dir / "gamma1_val_small.root"), "OUT": str(path), "FOLDER": str(path.parent)}
    assert main([named.get(word, word) for word in words.split()]) == 2
    assert "or replace it with --force" in capsys.readouterr().err
    assert (path.read_text(), [*path.parent.iterdir()]) == ("precious", [path])


def test_a_tilde_in_an_option_is_the_home_folder(small, tiny, tmp_path, monkeypatch):
    """Shells do not replace it behind an equals sign, nor in a configuration."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    sample = small["val"]
    assert main(["display", sample, "--output=~/event.html"]) == 0
    (tmp_path / "mine.yaml").write_text("output: ~/run")
    words = [f"--data.train={sample}", f"--data.val={sample}", "--trainer.max-steps=1", "--trainer.logger=false"]
    assert main(["fit", "--config=~/mine.yaml", *tiny, *words]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"event.html", "mine.yaml", "run"}
    assert (tmp_path / "run" / "last.ckpt").is_file()


def test_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "pflow", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"pflow {version('pflow')}\n"


def test_importing_pflow_loads_no_heavy_library():
    heavy = ("torch", "uproot", "awkward", "matplotlib")
    code = f"import sys, pflow, pflow.cli.main; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def interrupted_import() -> ImportError:
    error = ImportError("initialization failed")
    error.__cause__ = KeyboardInterrupt()
    return error


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (InputError("wrong\nand long", file="a.root", entry=3, field="x"), 1, "a.root, entry 3, 'x': wrong and long"),
        (OSError(5, "Input/output error", "a.root"), 1, "[Errno 5] Input/output error: 'a.root'"),
        (ZeroDivisionError("division by zero"), 1, "ZeroDivisionError: division by zero (unexpected: --debug shows"),
        (MemoryError(), 1, "out of memory"),
        (RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. "), 1, "Killed. Out of memory? Fewer"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (interrupted_import(), 130, "interrupted"),
    ],
)
def test_whatever_happens_is_one_line_and_an_exit_code(monkeypatch, capsys, error, code, said):
    monkeypatch.setattr("pflow.cli.files.inspect", Mock(side_effect=error))
    assert main(["inspect", "a.root"]) == code
    shown = capsys.readouterr().err
    assert shown.startswith("pflow inspect: ")
    assert said in shown
    assert shown.count("\n") == 1
    assert main(["inspect", "a.root", "--debug"]) == code
    assert "Traceback" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["pflow", "recipe", "--debug"])
    assert main(["inspect", "a.root"]) == code, "run by a recipe"
    assert "Traceback" in capsys.readouterr().err


def test_warnings_of_numpy_are_not_shown_to_the_user(monkeypatch, capsys):
    def computing(_: object) -> int:
        np.log(np.zeros(2)) / np.zeros(2)
        warnings.warn("the user's own affair", UserWarning, stacklevel=1)
        return 0

    monkeypatch.setattr("pflow.cli.files.inspect", computing)
    assert main(["inspect", "a.root"]) == 0
    assert capsys.readouterr().err == "warning: the user's own affair\n"


def test_what_a_terminal_cannot_show_stops_nothing(monkeypatch):
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setattr("pflow.cli.files.inspect", lambda _: print("0.940 ±0.017") or 0)
    assert main(["inspect", "a.root"]) == 0
    stdout.flush()
    assert stdout.buffer.getvalue() == b"0.940 ?0.017\n"


def test_a_remote_file_is_not_called_damaged(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec_xrootd", None)
    assert main(["inspect", "root://nowhere.invalid//a.root"]) == 1
    shown = capsys.readouterr().err
    assert "pflow[xrootd]" in shown
    assert "damaged" not in shown


pytestmark = pytest.mark.usefixtures("as_in_the_foreground", "few_resamples")


def test_verbs_say_once_what_too_few_tracks_leave_unchecked(sample_dir, tmp_path, capsys):
    events = read_events(sample_dir / "gamma1_val_small.root", entry_stop=20)
    few, flat, reco, model = (str(tmp_path / name) for name in ("few.root", "flat.root", "reco.root", "model"))
    write_events(few, dataclasses.replace(events, tracks=None, track_links=None))
    for words in (
        ["convert", few, flat],
        ["reconstruct", few, "--checkpoint", "ild-g4-photon", "--output", reco],
        ["evaluate", reco, "--truth", few, "--output", str(tmp_path), "--no-plots", "--no-oracle"],
        ["calibrate", few, "--checkpoint", "ild-g4-photon", "--output", model],
        ["validate", "--checkpoint", "ild-g4-photon", "--data.val", few],
    ):
        assert main(words) == 0
        assert re.findall("note: .*", capsys.readouterr().err) == [
            f"note: {few}: too few tracks above 1 GeV to check their hits in the ECAL: 0 in the barrel and 0 in the "
            "endcaps (8 are needed)"
        ]
    assert logging.getLogger("pflow").handlers == []


class Signalled:
    def __init__(self, number):
        self.number = number

    def __del__(self):
        signal.raise_signal(self.number)


def delete_and_wait(number):
    thing = Signalled(number)
    del thing
    time.sleep(10)


@pytest.mark.parametrize(("kind", "number"), SIGNALS.items())
def test_raised_at_once_also_while_an_object_is_deleted(kind, number, capfd):
    begin = time.monotonic()
    for work in (signal.raise_signal, delete_and_wait):
        with pytest.raises(kind), raised_signals():
            work(number)
    assert time.monotonic() - begin < 5
    assert not capfd.readouterr().err


def test_nothing_comes_after_the_work(capfd):
    with raised_signals():
        thing = Signalled(signal.SIGINT)
        del thing
    time.sleep(0.2)
    assert not capfd.readouterr().err


def test_other_exceptions_of_deleted_objects_are_shown_as_before(monkeypatch):
    shown = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: shown.append(found.exc_type))

    class Failing:
        def __del__(self):
            raise RuntimeError

    with raised_signals():
        thing = Failing()
        del thing
    assert shown == [RuntimeError]
