"""A file for HDF5 to write to, on a disk that may be full."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

__all__ = ["CheckedFile"]


class CheckedFile(io.RawIOBase):
    """A new file whose errors of writing are raised by `check`, not by the write.

    The HDF5 library cannot close a file to which it cannot write, and ends the interpreter when it tries. Here it never
    meets an error: from the first one on, what it writes stays in memory, which is little if `check` is called often.

    Parameters
    ----------
    path
        The file.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self._file = open(path, "w+b", buffering=0)  # noqa: SIM115 -- closed by `close`
        self._position = 0
        self._error: OSError | None = None
        self._unwritten: list[tuple[int, bytes]] = []

    def check(self) -> None:
        """Raise the first error of writing.

        Raises
        ------
        OSError
            As the file system gave it.
        """
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()
        super().close()

    def readable(self) -> bool:
        """Yes."""
        return True

    def writable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position; see `io.IOBase.seek`."""
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size()}[whence]
        self._position = begin + offset
        return self._position

    def tell(self) -> int:
        """The position."""
        return self._position

    def write(self, data: Any) -> int:
        """Write at the position."""
        content = bytes(data)
        if self._error is None:
            try:
                self._write(content)
            except OSError as error:
                self._error = error
        if self._error is not None:
            self._unwritten.append((self._position, content))
        self._position += len(content)
        return len(content)

    def readinto(self, buffer: Any) -> int:
        """Read from the position on, what was written or was to be."""
        begin = self._position
        end = min(begin + len(buffer), self._size())
        self._file.seek(begin)
        content = bytearray(self._file.read(max(end - begin, 0)).ljust(max(end - begin, 0), b"\0"))
        for start, data in self._unwritten:
            first, last = max(start, begin), min(start + len(data), end)
            if first < last:
                content[first - begin : last - begin] = data[first - start : last - start]
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)

    def truncate(self, size: int | None = None) -> int:
        """Set the size; see `io.IOBase.truncate`."""
        size = self._position if size is None else size
        if self._error is None:
            try:
                self._file.truncate(size)
            except OSError as error:
                self._error = error
        return size

    def _size(self) -> int:
        written = self._file.seek(0, io.SEEK_END)
        return max(written, *(start + len(data) for start, data in self._unwritten), 0)

    def _write(self, content: bytes) -> None:
        self._file.seek(self._position)
        rest = memoryview(content)
        while len(rest):
            rest = rest[self._file.write(rest) :]
