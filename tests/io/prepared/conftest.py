from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pflow.event import jagged
from pflow.event.events import Events

pytest.importorskip("pyarrow", reason="pyarrow is not installed")


@pytest.fixture(scope="session")
def prepared(sample_dir, tmp_path_factory) -> Path:
    """The events of two files of the repository in blocks of 4 and shards of 8 events; not to be changed."""
    from pflow.data.files import FileOptions
    from pflow.data.prepare import prepare_events

    folder = tmp_path_factory.mktemp("prepared") / "events"
    files = [str(sample_dir / f"{name}_test_small.root") for name in ("zqq", "multi")]
    prepare_events(files, folder, FileOptions(), block_size=4, shard_size=8)
    return folder


def _same(ours: Events, theirs: Events) -> bool:
    """Whether all parts and numbers agree, bit for bit and in type."""
    for name in ("entry", "event", "flags"):
        if getattr(ours, name).tobytes() != getattr(theirs, name).tobytes():
            return False
    if [name for name, _ in ours.parts()] != [name for name, _ in theirs.parts()]:
        return False
    for (_, one), (_, two) in zip(ours.parts(), theirs.parts(), strict=True):
        if one.type != two.type or jagged.count(one).tolist() != jagged.count(two).tolist():
            return False
        pairs = zip(jagged.columns(one).values(), jagged.columns(two).values(), strict=True)
        if any(a.dtype != b.dtype or a.tobytes() != b.tobytes() for a, b in pairs):
            return False
    return True


@pytest.fixture(scope="session")
def same() -> Callable[[Events, Events], bool]:
    return _same
