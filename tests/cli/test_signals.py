"""Signals that come where Python drops exceptions."""

import signal
import sys
import time

import pytest

from pflow.cli.signals import SIGNALS, raised_signals

ALL = [(number, kind) for kind, number in SIGNALS.items()]


class Signalled:
    """Gets a signal while it is deleted."""

    def __init__(self, number):
        self.number = number

    def __del__(self):
        signal.raise_signal(self.number)


def delete_and_wait(number):
    thing = Signalled(number)
    del thing
    time.sleep(10)


@pytest.fixture(autouse=True)
def as_in_the_foreground():
    """A shell lets its background jobs ignore SIGINT, and so these tests if it runs them there."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(("number", "kind"), ALL)
def test_raised_at_once(number, kind):
    with pytest.raises(kind), raised_signals():
        signal.raise_signal(number)


@pytest.mark.parametrize(("number", "kind"), ALL)
def test_raised_after_an_object_was_deleted(number, kind, capfd):
    begin = time.monotonic()
    with pytest.raises(kind), raised_signals():
        delete_and_wait(number)
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
