"""Measure pflow, and write the numbers, figures and tables that come with it.

    python scripts/results.py flagship     # what the shipped models find: flagship.json, its figures and tables
    python scripts/results.py cld          # the model of CLD, on the simplified detector and on real events
    python scripts/results.py tables       # the tables of RESULTS.md and of the cards anew from scripts/results/*.json

Each verb has options: `python scripts/results.py VERB --help`. Numbers are kept in scripts/results; the text of
RESULTS.md around the tables is written by hand. `scripts/bench.py` measures speed.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Sequence
from pathlib import Path

from measurements import (
    both_detectors,
    cld,
    differences,
    engines,
    flagship,
    learning_curves,
    oracle_calibration,
    overview,
    physics_reference,
    sameness,
    setups,
    simulated,
    sturdy,
)
from measurements.cards import fill_cards
from measurements.figures import figures, save
from measurements.files import FIGURES, REPORT, RESULTS, ROOT, read_json
from measurements.markdown import fill
from measurements.tables import report_tables, short_table


def write_tables(_: argparse.Namespace | None = None) -> None:
    """The tables of RESULTS.md, of the README and of the cards."""
    results = read_json(RESULTS / "flagship.json")
    fill(REPORT, report_tables(RESULTS))
    fill(ROOT / "README.md", {"results": short_table(results)})
    fill_cards(results)
    write_cld_tables()


def write_cld_tables() -> None:
    """The tables of the model of CLD in RESULTS.md and in its card, and that of disturbed events."""
    if (RESULTS / "sturdy.json").is_file():
        fill(REPORT, {"sturdy": sturdy.sturdy_table(read_json(RESULTS / "sturdy.json"))})
    path = RESULTS / "cld.json"
    if not path.is_file():
        return
    results = read_json(path)
    fill(REPORT, {"cld": cld.sample_table(results), "cld_real": cld.real_table(results)})
    fill_cards(results, {"results": cld.sample_table(results), "real": cld.real_table(results)})


def write_figures(folder: Path = RESULTS) -> None:
    """The figures of flagship.json, into the folder beside it."""
    save(figures(read_json(folder / "flagship.json")), folder / FIGURES.name)


def measure_flagship(args: argparse.Namespace) -> None:
    """Measure, and write figures; tables only of the final results."""
    folder = flagship.run(args)
    if not args.decoding_alone:
        write_figures(folder)
    if folder == RESULTS:
        write_tables()
    else:
        print("\n\n".join(report_tables(folder).values()))


def measure_cld(args: argparse.Namespace) -> None:
    """Measure, and write the tables of the final results; else show them."""
    folder = cld.run(args)
    if folder == RESULTS:
        write_cld_tables()
    else:
        results = read_json(folder / "cld.json")
        print(f"{cld.sample_table(results)}\n\n{cld.real_table(results)}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    def add(name: str, text: str | None, run: Callable[[argparse.Namespace], object]) -> argparse.ArgumentParser:
        verb = verbs.add_parser(
            name,
            help=(text or "").partition("\n")[0],
            description=text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        verb.set_defaults(run=run)
        return verb

    add("tables", write_tables.__doc__, write_tables)
    add("figures", "The figures of RESULTS.md from flagship.json.", lambda _: write_figures())
    flagship.add_options(add("flagship", flagship.__doc__, measure_flagship))
    cld.add_options(add("cld", cld.__doc__, measure_cld))
    for name in setups.EXPERIMENTS:
        setups.add_options(add(name, setups.__doc__, functools.partial(setups.run, name=name)))
    for module in (
        both_detectors,
        differences,
        engines,
        learning_curves,
        oracle_calibration,
        physics_reference,
        overview,
        sameness,
        simulated,
        sturdy,
    ):
        name = module.__name__.rpartition(".")[2].replace("_", "-")
        module.add_options(add(name, module.__doc__, module.run))
    args = parser.parse_args(arguments)
    args.run(args)


if __name__ == "__main__":
    main()
