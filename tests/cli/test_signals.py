"""Signals that come where Python drops exceptions."""

import signal
import sys
import time

import pytest

from pflow.cli.main import SIGNALS, raised_signals

pytestmark = pytest.mark.usefixtures("as_in_the_foreground")


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
