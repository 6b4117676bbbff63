"""Time pflow's parts, each on real files.

    python scripts/bench.py reconstruct tests/data/zqq_test_small.root
    python scripts/bench.py BENCHMARK --help

Times are the fastest of several runs. On a machine that does other work, compare only figures of one run.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from benchmarks import gpu, latency, reconstruct
from pflow.errors import PflowError

BENCHMARKS = (reconstruct, latency, gpu)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = parser.add_subparsers(required=True, metavar="BENCHMARK")
    for module in BENCHMARKS:
        benchmark = names.add_parser(
            module.__name__.rpartition(".")[2],
            help=(module.__doc__ or "").partition("\n")[0],
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_options(benchmark)
        benchmark.set_defaults(run=module.run)
    args = parser.parse_args(arguments)
    try:
        args.run(args)
    except PflowError as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
