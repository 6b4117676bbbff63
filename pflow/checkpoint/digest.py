"""Files whose SHA-256 stands in another file."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pflow.errors import InputError, reading

__all__ = ["read_checked"]


def read_checked(path: Path, digest: str, *, stated_in: str) -> bytes:
    """Content of a file.

    Parameters
    ----------
    path
        The file.
    digest
        Its SHA-256, hexadecimal.
    stated_in
        Name of the file that states it, for errors.

    Raises
    ------
    InputError
        It cannot be read, or has another digest.
    """
    with reading("cannot be read", file=path):
        content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != digest:
        raise InputError(
            f"damaged, or not what {stated_in} was written for: its SHA-256 is {found}, expected {digest}", file=path
        )
    return content
