import signal

import pytest

from pflow.cli.signals import Terminated, raised_signals


def test_sigterm_is_raised_and_its_handler_is_that_of_before_afterwards():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Terminated), raised_signals():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before
