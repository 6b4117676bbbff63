"""Signals that wait."""

from __future__ import annotations

import signal
import threading

import pytest

from pflow.io.legacy_hdf5.deferred_signals import deferred_signals


@pytest.fixture
def raised():
    """Numbers of the signals that came through, SIGTERM's at most."""
    found: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: found.append(number))
    yield found
    signal.signal(signal.SIGTERM, before)


def test_a_signal_waits_until_it_is_let_through(raised):
    with deferred_signals() as let_through:
        signal.raise_signal(signal.SIGTERM)
        assert raised == []
        let_through()
        assert raised == [signal.SIGTERM]
        let_through()
    assert raised == [signal.SIGTERM]
    signal.raise_signal(signal.SIGTERM)
    assert len(raised) == 2


def test_or_until_the_end(raised):
    with deferred_signals():
        signal.raise_signal(signal.SIGTERM)
    assert raised == [signal.SIGTERM]


def test_handlers_come_back_after_an_error(raised):
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ZeroDivisionError), deferred_signals():
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGTERM) is handler


def test_other_threads_leave_handlers_alone(raised):
    handler, found = signal.getsignal(signal.SIGTERM), []

    def run() -> None:
        with deferred_signals() as let_through:
            found.append(signal.getsignal(signal.SIGTERM))
            let_through()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [handler]
