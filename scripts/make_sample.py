"""Cut the small samples in tests/data out of the full ones: the first events of each, every quantity, unchanged.

    python scripts/make_sample.py --data-dir ../shared/data --output tests/data

Together they stay below 4 MB. LZMA is a quarter smaller here than the full files' ZSTD and still reads in a fraction
of a second.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import uproot

from pflow.io.events_root import write_events
from pflow.io.open import open_events

EVENTS = {  # folder, which is also the layout; sample; events
    ("g4", "gamma1_train"): 460,
    ("g4", "gamma1_val"): 50,
    ("g4", "gamma1_test"): 100,
    ("g4", "gammasep_test"): 25,
    ("g4", "multi_test"): 25,
    ("g4", "zqq_test"): 6,
    ("cld_g4", "multi_train"): 80,
    ("cld_g4", "multi_test"): 25,
}
LIMIT = 4_000_000  # bytes, all files together


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True, help="folder with the folders of the full samples")
    parser.add_argument("--output", type=Path, required=True, help="folder for the small ones")
    args = parser.parse_args()
    total = 0
    for (folder, name), events in EVENTS.items():
        reader = open_events(args.data_dir / folder / f"{name}.root", layout=folder)
        target = args.output / f"{'cld_' if folder == 'cld_g4' else ''}{name}_small.root"
        write_events(target, reader.read(0, events), compression=uproot.LZMA(9), inputs=[reader.path])
        reader.close()
        size = target.stat().st_size
        total += size
        print(f"{target}: {events} events, {size / 1e3:.0f} kB")
    print(f"in all {total / 1e6:.2f} MB")
    if total > LIMIT:
        raise SystemExit(f"more than {LIMIT / 1e6:.0f} MB: take fewer events")


if __name__ == "__main__":
    main()
