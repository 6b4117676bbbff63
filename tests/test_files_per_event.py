"""Through how many files of pflow an event goes: what a reader of the code has to open to follow it."""

import sys
from collections.abc import Callable
from pathlib import Path

import pflow
from pflow.inference.files import reconstruct_files

PACKAGE = str(Path(pflow.__file__).parent)


def files_called(action: Callable[[], object]) -> set[str]:
    """Files of pflow with a function that is called."""
    called: set[str] = set()
    before = sys.getprofile()
    sys.setprofile(lambda frame, *_: called.add(frame.f_code.co_filename))
    try:
        action()
    finally:
        sys.setprofile(before)
    return {name for name in called if name.startswith(PACKAGE)}


def test_an_event_goes_through_few_files(sample_dir, tmp_path):
    """The limits are today's numbers: lower them with the numbers, raise them for no new file.

    They rose by 2 with the comparison of tracks with what they leave (`pflow.event.closure`), in all that is read.
    """
    path, model = sample_dir / "zqq_test_small.root", pflow.load_model("general")
    events = pflow.read_events(path, entry_stop=1)
    in_memory = files_called(lambda: pflow.reconstruct(events, model))
    assert len(in_memory) <= 32, sorted(in_memory)
    in_files = files_called(lambda: reconstruct_files([path], checkpoint=model, output=tmp_path / "reco.root"))
    assert len(in_files) <= 42, sorted(in_files)
