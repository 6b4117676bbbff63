"""Whether files stay as they were."""

from __future__ import annotations

import hashlib
from pathlib import Path


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of the files in a folder and those below it, by their paths in it."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
