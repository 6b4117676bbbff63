"""A case in a child process with limits of time and memory."""

from __future__ import annotations

import dataclasses
import faulthandler
import os
import resource
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

WAIT = 10
"""Largest wall time, as a multiple of the limit of CPU time."""

MEMORY = ("MemoryError", "Unable to allocate", "not enough memory", "out of memory", "bad_alloc")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """Outcome of a case."""

    what: str
    """``accepted``, ``refused``, or a failure: ``escaped TYPE`` (an exception that is not pflow's), ``wrong`` (a check
    of the case failed), ``crashed SIGNAL``, ``time`` or ``memory``."""
    text: str
    """The error's message."""
    seconds: float
    """CPU time, which does not depend on what else the machine does."""
    megabytes: float
    """Memory in use at most, with the parent's."""

    @property
    def failed(self) -> bool:
        return self.what not in ("accepted", "refused")


def run_limited(case: Callable[[], None], *, log: Path, seconds: float, megabytes: float) -> Outcome:
    """Run a function in a fork of this process, which must not have started any thread.

    What it prints goes to `log`, and its outcome to the last line of that.
    """
    child = os.fork()
    if child == 0:
        os._exit(_in_child(case, log, seconds, megabytes))
    status, usage, late = _ended(child, signal.SIGKILL, after=WAIT * seconds)  # it waits for something
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    what, _, text = (lines[-1] if lines else "").partition("\t")
    if late or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU):
        what, text = "time", f"more than {seconds:g} s"
    elif os.WIFSIGNALED(status):
        what, text = f"crashed {signal.Signals(os.WTERMSIG(status)).name}", ""
    elif any(word in text for word in MEMORY):
        what = "memory"
    cpu = usage.ru_utime + usage.ru_stime
    return Outcome(what=what, text=text, seconds=cpu, megabytes=usage.ru_maxrss / 1024)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ended:
    """How a command ended: exit code (minus the number of the signal that killed it), output and wall time."""

    code: int
    said: str
    seconds: float


def run_signalled(words: Sequence[str], *, log: Path, sent: signal.Signals, after: float) -> Ended:
    """Run a command line of pflow in a fork of this process, and send it a signal after some seconds.

    This process must not have started any thread.
    """
    begin = time.monotonic()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until the child is where it is caught
    child = os.fork()
    if child == 0:
        code = 130
        try:
            code = _command(words, log)
        except KeyboardInterrupt:  # before or after `main`
            pass
        finally:
            os._exit(code)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    status, _, _ = _ended(child, sent, after=after)
    said = log.read_text(errors="replace") if log.exists() else ""
    return Ended(code=os.waitstatus_to_exitcode(status), said=said, seconds=time.monotonic() - begin)


def _ended(child: int, sent: signal.Signals, *, after: float) -> tuple[int, resource.struct_rusage, bool]:
    """Status of an ended process, its resource usage, and whether `sent` was sent to it after `after` seconds."""
    begin, signalled = time.monotonic(), False
    while True:
        ended, status, usage = os.wait4(child, os.WNOHANG)
        if ended:
            return status, usage, signalled
        if not signalled and time.monotonic() - begin > after:
            os.kill(child, sent)
            signalled = True
        time.sleep(0.001)


def _command(words: Sequence[str], log: Path) -> int:
    from pflow.cli.main import main

    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    _redirect(log)
    try:
        code = main(words)
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    sys.stdout.flush()
    return code


def _redirect(log: Path) -> None:
    """Let what this process prints go to a file."""
    stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(stream, 1)
    os.dup2(stream, 2)
    sys.stdout = sys.stderr = os.fdopen(stream, "w", errors="backslashreplace")


def _in_child(case: Callable[[], None], log: Path, seconds: float, megabytes: float) -> int:
    from pflow.errors import PflowError

    _redirect(log)
    faulthandler.disable()
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = in_use + int(megabytes * 2**20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds) + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")  # damaged files are warned of
    try:
        case()
        what, text = "accepted", ""
    except PflowError as error:
        what, text = "refused", str(error)
    except AssertionError as error:
        place = Path(traceback.extract_tb(error.__traceback__)[-1].filename)  # a check of a case, or a library's
        what, text = "wrong" if place.parent == Path(__file__).parent else "escaped AssertionError", str(error)
        traceback.print_exc()
    except BaseException as error:
        what, text = f"escaped {type(error).__name__}", str(error)
        traceback.print_exc()
    print(f"\n{what}\t{' '.join(text.split())}", flush=True)
    return 0
