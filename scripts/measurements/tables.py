"""Tables of RESULTS.md, the README and the cards, from results.csv."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from measurements.cards import training_table
from measurements.paper import paper_tables
from measurements.rows import REPORT, ROOT, Row, fill, read_rows, table
from measurements.shipped import ALONE, BY_CLASS, CLASSES, GENERAL, OF_CLASS, PHOTON, QUANTITIES, TRANSLATION
from pflow.checkpoint.load import read_checkpoint
from pflow.config import weights_dir

JETS = "translation of jets"
"""Name in results.csv of a model that does not come with pflow."""
PHOTON_SAMPLES = ("gamma1", "gammasep")
ILD_SAMPLES = ("single", "multi", "zqq", "zh", "tau10")
CLD_SAMPLES = ("gammasep", "single", "multi", "zqq", "zh")
MAIN = (
    "energy-weighted efficiency [%]",
    "fake energy fraction [%]",
    "class right, of matched [%]",
    "visible energy, resolution_68 / median [%]",
)
"""Quantities in the tables of fine-tuning and of disturbed events."""
LEFT_OUT = (
    "jets (kt R = 0.4), IQR / median [%]",
    "jets (kt R = 0.7), IQR / median [%]",
    "photons found [%]",
    "electrons: class right, of matched [%]",
    *BY_CLASS,
)
"""Quantities that the tables by sample leave out."""
OF_MANY_EVENTS = ("energy-weighted efficiency [%]", "fake energy fraction [%]")
"""Quantities whose errors are too large for a table of four events."""
CARD = (
    "energy, resolution_68 / median [%]",
    "right number of photons [%]",
    *MAIN,
    "jets (Durham, two), IQR / median [%]",
)
"""Quantities on the cards."""
SHORT = (
    ("g4/gamma1", "energy, resolution_68 / median [%]"),
    ("g4/gammasep", "right number of photons [%]"),
    ("g4/multi", "energy-weighted efficiency [%]"),
    ("g4/zqq", "energy-weighted efficiency [%]"),
    ("g4/zqq", "jets (Durham, two), IQR / median [%]"),
    ("g4/zh", "visible energy, resolution_68 / median [%]"),
    ("cld_g4/zqq", "visible energy, resolution_68 / median [%]"),
    ("cld_g4/zh", "jets (Durham, two), IQR / median [%]"),
)
"""Samples and quantities of the README, those included in which Pandora is better."""
NAMES = {
    "gamma1": "one photon",
    "gammasep": "one or two photons",
    "multi": "2 to 6 particles",
    "zqq": "Z -> qq, 91 GeV",
    "zh": "ZH, 240 GeV",
}


def report_tables(rows: Sequence[Row]) -> dict[str, str]:
    """The tables of RESULTS.md by the name of their place."""
    return {
        "photons": models_table(rows, (PHOTON, GENERAL, TRANSLATION), PHOTON_SAMPLES),
        "ild": sample_table(rows, GENERAL, "g4", ILD_SAMPLES),
        "cld": sample_table(rows, GENERAL, "cld_g4", CLD_SAMPLES),
        "classes": class_table(rows),
        "zero_shot": zero_shot_table(rows),
        "full": sample_table(rows, GENERAL, "edm4hep", ("cld_rec", "cld_zuds100_sim"), left_out=OF_MANY_EVENTS),
        "fine_tuning": fine_tuning_table(rows),
        "robustness": variations_table(rows, "disturbed"),
        "moved": variations_table(rows, "moved"),
        "speed": speed_table(rows),
        **paper_tables(rows),
        "jets": models_table(rows, (JETS, GENERAL), ("single", "multi", "zqq"), LEFT_OUT),
    }


def models_table(
    rows: Iterable[Row], models: Sequence[str], samples: Sequence[str], left_out: Sequence[str] = ()
) -> str:
    """Samples of the ILD, a column for each model; the oracle reads what the first model does."""
    by_key = {row.key: row for row in rows}
    lines = []
    for name in samples:
        for quantity in QUANTITIES[name]:
            first = by_key.get((models[0], f"g4/{name}", quantity))
            if first is not None and quantity not in left_out:
                numbers = [*(by_key[model, f"g4/{name}", quantity].text for model in models)]
                lines.append([name, quantity, *numbers, first.beside(first.reference), first.beside(first.oracle)])
    heads = (model if model == JETS else f"`{model}`" for model in models)
    return table(["sample", "quantity", *heads, "Pandora", "oracle"], lines, left=2)


def sample_table(
    rows: Iterable[Row], model: str, folder: str, samples: Sequence[str], left_out: Sequence[str] = LEFT_OUT
) -> str:
    """Quantities that a model reaches on samples of a folder."""
    of_model = [row for name in samples for row in rows if (row.model, row.sample) == (model, f"{folder}/{name}")]
    lines = (
        [row.sample.rpartition("/")[2], row.quantity, row.text, row.beside(row.reference), row.beside(row.oracle)]
        for row in of_model
        if row.quantity not in left_out
    )
    return table(["sample", "quantity", "pflow", "Pandora", "oracle"], lines, left=2)


def class_table(rows: Iterable[Row]) -> str:
    """Each class of particles in full events: response, width and fakes, with Pandora's beside."""
    by_key = {row.key: row for row in rows}
    lines = []
    for detector, folder in (("ILD", "g4"), ("CLD", "cld_g4")):
        for sample in ("zqq", "zh"):
            for name in CLASSES:
                of_class = [by_key[GENERAL, f"{folder}/{sample}", f"{name}: {quantity}"] for quantity in OF_CLASS]
                cells = [cell for row in of_class for cell in (row.text, row.beside(row.reference))]
                lines.append([f"{detector}, {sample}", name, *cells])
    head = [cell for name in ("response [%]", "width [%]", "fakes [%]") for cell in (name, "Pandora")]
    return table(["sample", "class", *head], lines, left=2)


def card_table(rows: Iterable[Row], samples: Sequence[str]) -> str:
    """The quantities of `CARD` of one model, a line a sample, with Pandora in brackets."""
    by_quantity = {(row.sample, row.quantity): row for row in rows}
    quantities = [name for name in CARD if any((sample, name) in by_quantity for sample in samples)]
    lines = []
    for sample in samples:
        of_sample = (by_quantity.get((sample, name)) for name in quantities)
        name = f"{'CLD' if sample.startswith('cld_g4/') else 'ILD'}, {sample.rpartition('/')[2]}"
        lines.append([name, *(f"{row.text} ({row.beside(row.reference)})" if row else "-" for row in of_sample)])
    return table(["pflow (Pandora)", *quantities], lines)


def short_table(rows: Iterable[Row]) -> str:
    """The table of the README: telling quantities, of the best model for each sample."""
    by_key = {(row.sample, row.quantity): row for row in rows if row.model in (PHOTON, GENERAL)}
    photon = {(row.sample, row.quantity): row for row in rows if row.model == PHOTON}
    lines = []
    for key in SHORT:
        row = photon.get(key) or by_key[key]
        folder, name = row.sample.split("/")
        sample = f"{'CLD' if folder == 'cld_g4' else 'ILD'}, {NAMES[name]}"
        lines.append([sample, row.quantity, row.text, row.beside(row.reference), row.beside(row.oracle)])
    return table(["sample", "quantity", "pflow", "Pandora", "oracle"], lines, left=2)


ZERO_SHOT = {
    "gammasep": ("right number of photons [%]",),
    "single": MAIN[:3],
    "multi": MAIN[:3],
    "zqq": (*MAIN, "visible energy, median response [%]", "angle, 68% quantile [deg]"),
}


def zero_shot_table(rows: Iterable[Row]) -> str:
    """Both detectors, by the models trained on the other alone, on itself alone, and on both."""
    by_key = {row.key: row for row in rows}
    lines = []
    for name, folder in (("CLD", "cld_g4"), ("ILD", "g4")):
        other = next(key for key in ALONE if key != folder)
        for sample, quantities in ZERO_SHOT.items():
            for quantity in quantities:
                models = (ALONE[other], ALONE[folder], GENERAL)
                made = [by_key[model, f"{folder}/{sample}", quantity] for model in models]
                pandora = made[-1].beside(made[-1].reference)
                lines.append([f"{name}, {sample}", quantity, *(row.text for row in made), pandora])
    return table(["tested on", "quantity", "the other alone", "itself alone", "`general`", "Pandora"], lines, left=2)


VARIED = {
    "efficiency [%]": "energy-weighted efficiency [%]",
    "fakes [%]": "fake energy fraction [%]",
    "class right [%]": "class right, of matched [%]",
    "visible energy [%]": "visible energy, resolution_68 / median [%]",
}
"""Short names of quantities in the tables of disturbed and of moved events."""


def variations_table(rows: Iterable[Row], kind: str) -> str:
    """Events of both detectors, `kind` disturbed or moved, a line for each variation."""
    text = {row.key: row.text for row in rows}
    names = dict.fromkeys(sample.partition(", ")[2] for _, sample, _ in text if f"zqq {kind}, " in sample)
    detectors = (("ILD", "g4"), ("CLD", "cld_g4"))
    lines = [
        [name]
        + [
            text[GENERAL, f"{folder}/zqq {kind}, {name}", quantity]
            for _, folder in detectors
            for quantity in VARIED.values()
        ]
        for name in names
    ]
    return table(["events", *(f"{detector}: {name}" for detector, _ in detectors for name in VARIED)], lines)


def fine_tuning_table(rows: Iterable[Row]) -> str:
    """Jets of CLD by the model trained on the ILD alone, before and after training on some events of CLD."""
    by_key = {row.key: row for row in rows}
    lines = []
    for n in (0, 30, 100, 300):
        model = f"{ALONE['g4']}, {n} events of CLD" if n else ALONE["g4"]
        lines.append([str(n), *(by_key[model, "cld_g4/zqq", quantity].text for quantity in MAIN)])
    return table(["events of CLD", *MAIN], lines)


ENGINES = ("torch", "C++")


def speed_table(rows: Iterable[Row]) -> str:
    """CPU time of a `zqq` event by engine, ms."""
    times = {row.quantity: row.value for row in rows if row.sample == "g4/zqq, one event at a time"}

    quantities = ("mean [ms]", "p50 [ms]", "p99 [ms]", "loading [ms]", "memory [MB]")
    lines = []
    for engine in ENGINES:
        values = [times.get(f"{engine}, {quantity}") for quantity in quantities]
        cells = ("-" if value is None else f"{value:.1f}" if value < 100 else f"{value:.0f}" for value in values)
        lines.append([engine, *cells])
    return table(["engine", *quantities], lines)


def write_tables() -> None:
    """Fill all tables."""
    rows = read_rows()
    fill(REPORT, report_tables(rows))
    fill(ROOT / "README.md", {"results": short_table(rows)})
    fill_cards(rows)


def fill_cards(rows: Sequence[Row]) -> None:
    """The tables of the cards: how the weights were trained, and their results."""
    photons, cld = [f"g4/{name}" for name in PHOTON_SAMPLES], [f"cld_g4/{name}" for name in CLD_SAMPLES]
    of_model = {
        PHOTON: photons,
        TRANSLATION: photons,
        GENERAL: [*photons, *(f"g4/{name}" for name in ILD_SAMPLES), *cld],
    }
    for model, samples in of_model.items():
        folder = weights_dir() / model
        tables = {
            "training": training_table(read_checkpoint(folder).header, folder / "training.json"),
            "results": card_table([row for row in rows if row.model == model], samples),
        }
        fill(folder / "README.md", tables)
