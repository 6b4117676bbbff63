"""Run each command that writes on a disk that is full, and check what it says and leaves.

    python scripts/full_disk.py
    python scripts/full_disk.py --only convert fit --json full_disk.json

The disk is a tmpfs, which only root may mount. A command that needs so many bytes finds none, or a share of them, free,
beside an earlier output where it replaces one. It must end with exit code 1 and one line that says why, leave what was
there as it was, and leave no part of a file, under its final name or another.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from attacks.digests import digests
from attacks.jobs import WRITERS, Job, make_inputs
from attacks.trials import Trial, check_no_leftovers
from measurements.files import write_json

SHARES = (0.0, 0.3, 0.6, 0.9, 1.5)
"""Of the bytes that a command needs, those that are free; with the last it must end well."""
PAGE = 4096
BALLAST = "ballast"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=WRITERS, default=list(WRITERS), metavar="JOB", help="jobs to run")
    parser.add_argument("--json", type=Path, help="write the report to this file too")
    args = parser.parse_args(arguments)

    report, failures = [], 0
    with tempfile.TemporaryDirectory(prefix="full-disk-") as scratch:
        with disk(Path(scratch) / "trial", 2**20):  # fails here where none can be mounted
            pass
        inputs = Path(scratch) / "inputs"
        inputs.mkdir()
        make_inputs(inputs, log=Path(scratch) / "log")
        print(f"{'job':<22}{'needs [kB]':>12}{'runs':>8}{'refused':>9}{'written':>9}{'failed':>9}")
        for name in args.only:
            trial = DiskTrial(WRITERS[name], inputs, Path(scratch) / name.replace(" ", "_"))
            counts: Counter[str] = Counter()
            for share in SHARES:
                try:
                    counts[trial.fill_and_run(share)] += 1
                except AssertionError as error:
                    counts["failed"] += 1
                    print(f"{name}, {share:.0%} free: {error}", flush=True)
            columns = "".join(
                f"{counts[key]:>{width}}" for key, width in (("refused", 9), ("written", 9), ("failed", 8))
            )
            print(f"{name:<22}{trial.needed / 1000:>12.0f}{len(SHARES):>8}{columns}", flush=True)
            report.append({"job": name, "bytes": trial.needed, "runs": len(SHARES), **counts})
            failures += counts["failed"]
    if args.json is not None:
        write_json(args.json, {"jobs": report})
    return 1 if failures else 0


@contextmanager
def disk(place: Path, size: int) -> Iterator[None]:
    """A disk of so many bytes at a folder."""
    place.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], capture_output=True, text=True
    )
    if mounted.returncode:
        sys.exit(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(place)], check=True)


class DiskTrial(Trial):
    """A job on full disks."""

    def __init__(self, job: Job, inputs: Path, folder: Path) -> None:
        super().__init__(job, inputs, folder)
        place = self.undisturbed
        sizes = {path: path.stat().st_size for path in sorted(place.rglob("*")) if path.is_file()}
        self.needed = sum(sizes.values())
        self._pages = sum(-(-size // PAGE) for size in sizes.values())
        self._earlier = {path.relative_to(place): path.read_bytes() for path in sizes} if job.replaces else {}

    def fill_and_run(self, share: float) -> str:
        """Run with a share of the bytes free that the job needs.

        Returns
        -------
        str
            ``refused`` or ``written``.

        Raises
        ------
        AssertionError
            What does not hold.
        """
        place = self.folder / f"{share:.0%}"
        pages = 2 * self._pages + 64
        with disk(place, pages * PAGE):
            for name, content in self._earlier.items():
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                (place / name).write_bytes(content)
            self._fill(place, free=round(share * self._pages) * PAGE)
            before = digests(place)
            ended = self.run(place)
            errors = [line for line in ended.said.splitlines() if ": error: " in line]
            assert "Traceback" not in ended.said, ended.said
            check_no_leftovers(place)
            found = self.job.content(place)  # raises where a file is not whole
            if ended.code == 0:
                assert found == self.expected, "written, and not what a run with room gives"
                return "written"
            assert (ended.code, len(errors)) == (1, 1), f"exit code {ended.code}: {ended.said}"
            assert "cannot write" in errors[0], errors[0]
            assert share < 1, f"refused, though there is room: {errors[0]}"
            after = digests(place)
            assert before.keys() <= after.keys(), "what was there is gone"
            if not self.job.several:
                assert after == before, "what was there has changed"
        return "refused"

    def _fill(self, place: Path, *, free: int) -> None:
        room = os.statvfs(place)
        with (place / BALLAST).open("wb") as file:
            if room.f_bavail * room.f_frsize > free:
                os.posix_fallocate(file.fileno(), 0, room.f_bavail * room.f_frsize - free)


if __name__ == "__main__":
    raise SystemExit(main())
