"""The section of RESULTS.md, written from the results alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from flagship.losses import N_WORST
from flagship.targets import ROWS, Verdict, number, verdicts
from pflow.metrics.evaluation import CLASSICAL
from pflow.metrics.pulls import QUANTITIES
from pflow.metrics.report import number_text
from pflow.physics.pdg import CLASSES

__all__ = ["confusions", "losses_table", "section", "table"]

TEXT = """\
## The flagship

What the shipped models find on the {split} files, beside Pandora and the limit on the same events, all by our own
evaluation: matching by energy and angle with cut 3, truth rule `stable` (`tau10`: `entering`). Events: {counts}.

    {command}

{models}

{table}

Errors are half the 68.3% interval. "(open)" marks an answer that the intervals leave open: a target, or Pandora's
interval, lies within ours. The limit's counts and classes are the true ones by construction; beside a model that reads
no tracks it is the limit without tracks. "No track" are the photons of events without a track: the mean angle of all is
ruled by few that convert, whose two showers the field takes apart. Pandora's energy scale is not tuned to this detector
(photons come out 3% high), which is part of its mean \\|dE\\|/E: compare the resolutions. The paper's figures are from
its own samples. "Class right" tells charged hadron, neutral hadron, photon, electron and muon apart; "of all" counts a
target that no particle matches as wrong.

### Against every generator particle

The targets of the issue quote Pandora against every generator particle but neutrinos, visible or not. So counted:

{generator}

### Against energy and angle

{images}

### Uncertainties

{pulls}

### Where it fails

Energy of targets that nothing matches (missed) and of particles that match no target (fake), as a share of the energy
of all targets, by class (of the target, and of the particle that was written):

{losses}

The most frequent wrong answers: {confusions}.

The {n_worst} worst events of each sample: those in which missed and fake energy together are the largest share of the
targets' energy. The worst of each is drawn below.

{worst}

{displays}

All numbers, with intervals: `{json}`.
"""

UNCERTAIN = """\
Pulls, (reconstructed - true) / stated uncertainty, of matched particles: the mean, and the width, half of the narrowest
interval that holds 68.3% of them (1 where the uncertainty is right). Of ln E, and of the direction along rising polar
angle and along the azimuth.

"""
NO_PULLS = "{models} state{s} no uncertainties, so there are no pulls to check."


def section(results: dict[str, Any], *, command: str, json: str, images: Mapping[str, str]) -> str:
    """Text and tables.

    Parameters
    ----------
    results
        Content of ``flagship.json``.
    command
        What writes this section anew.
    json
        Where the results are.
    images
        Links to the figures by their names.
    """
    samples = results["samples"]
    found = verdicts(results)
    shown = {event["display"] for sample in samples.values() for event in _worst(sample) if "display" in event}
    return TEXT.format(
        split=results["split"],
        counts=_counts(results),
        command=command,
        models=_models(results),
        table=table(
            ["sample", "quantity", "paper", "Pandora", "limit", "model", "ours", "target", "met"],
            (_row(verdict) for verdict in found),
            left=(0, 1, 5, 7, 8),
        )
        + _summary(found),
        generator=_generator(samples),
        images=_gallery({name: link for name, link in images.items() if name not in shown}),
        pulls=_pulls(samples),
        losses=losses_table(samples),
        confusions=confusions(samples),
        n_worst=N_WORST,
        worst=_worst_events(samples),
        displays=_gallery({name: link for name, link in images.items() if name in shown}),
        json=json,
    )


def _counts(results: dict[str, Any]) -> str:
    return ", ".join(f"{sample['n_events']} of `{name}`" for name, sample in results["samples"].items())


def _models(results: dict[str, Any]) -> str:
    rows = (
        [
            role,
            f"`{model['source']}`",
            f"{model['parameters']:,}",
            "yes" if model["reads_tracks"] else "no",
            f"`{model['sha256'][:12]}`",
        ]
        for role, model in results["models"].items()
    )
    return table(["model", "name", "parameters", "reads tracks", "SHA-256"], rows, left=(0, 1, 3, 4))


def _row(verdict: Verdict) -> list[str]:
    row = verdict.row
    met = "-" if verdict.met is None else "yes" if verdict.met else "no"
    return [
        row.sample,
        row.title,
        row.paper,
        *(number_text(n) for n in (verdict.classical, verdict.limit)),
        verdict.model,
        number_text(verdict.ours),
        "; ".join(goal.text() for goal in row.goals) or "-",
        f"{met} (open)" if verdict.within_error else met,
    ]


def _summary(found: list[Verdict]) -> str:
    """How many targets are met, by model, and the rows that no model was run for."""
    lines = []
    for model in dict.fromkeys(verdict.model for verdict in found):
        judged = [verdict for verdict in found if verdict.model == model and verdict.met is not None]
        if judged:
            open_ = sum(verdict.within_error for verdict in judged)
            lines.append(
                f"The {model} model meets {sum(bool(verdict.met) for verdict in judged)} of {len(judged)} targets"
                f"{f' ({open_} of the answers open)' if open_ else ''}."
            )
    missing = dict.fromkeys(row.sample for row in ROWS if row.sample not in {v.row.sample for v in found})
    if missing:
        lines.append(f"Not measured: {', '.join(f'`{name}`' for name in missing)}.")
    return "\n\n" + " ".join(lines) if lines else ""


def _generator(samples: dict[str, Any]) -> str:
    rows = []
    for name in ("single", "multi", "zqq"):
        for line in (CLASSICAL, *samples[name]["models"]) if name in samples else ():
            tree = samples[name]["lines"].get(line)
            keys = ("energy_weighted_efficiency", "fake_energy_fraction", "class_accuracy")
            numbers = [number_text(number(tree, f"extra.generator.{key}") * 100) for key in keys]
            rows.append([name, _line_title(line), *numbers])
    head = ["sample", "line", "energy-weighted efficiency [%]", "fake energy fraction [%]", "class right [%]"]
    return table(head, rows, left=(0, 1))


def _pulls(samples: dict[str, Any]) -> str:
    rows, without = [], dict.fromkeys(model for sample in samples.values() for model in sample["models"])
    for name, sample in samples.items():
        for model in sample["models"]:
            found = sample["lines"][model]["extra"].get("pulls")
            if found is None:
                continue
            without.pop(model, None)
            for class_name in CLASSES:
                if class_name in found:
                    tree = found[class_name]
                    numbers = [
                        number_text(number(tree, f"{quantity}.{key}"))
                        for quantity in QUANTITIES
                        for key in ("mean", "width")
                    ]
                    title = class_name.replace("_", " ")
                    rows.append([name, model, title, str(tree["log_energy"]["n"]), *numbers])
    none = ""
    if without:
        names = " and ".join(f"the {model} model" for model in without)
        none = NO_PULLS.format(models=names[0].upper() + names[1:], s="" if len(without) > 1 else "s")
    if not rows:
        return none
    head = ["sample", "model", "class", "particles"]
    head += [f"{title}, {what}" for title in ("ln E", "polar angle", "azimuth") for what in ("mean", "width")]
    return f"{UNCERTAIN}{table(head, rows, left=(0, 1, 2))}" + (f"\n\n{none}" if none else "")


def losses_table(samples: dict[str, Any]) -> str:
    rows = []
    for name, sample in samples.items():
        for line in (CLASSICAL, *sample["models"]):
            if line not in sample["lines"]:
                continue
            losses = sample["lines"][line]["extra"]["losses"]
            for what in ("missed", "fake"):
                shares = [losses[what][class_name] for class_name in CLASSES]
                rows.append([name, _line_title(line), what, *("-" if x is None else f"{x:.2%}" for x in shares)])
    return table(["sample", "line", "energy", *(c.replace("_", " ") for c in CLASSES)], rows, left=(0, 1, 2))


def confusions(samples: dict[str, Any]) -> str:
    """For each sample, the commonest pair of a true and another reconstructed class of the model made for it."""
    parts = []
    for name, sample in samples.items():
        confusion = sample["lines"][sample["models"][0]]["confusion"]
        pairs: Counter[tuple[str, str]] = Counter()
        for true, row in zip(CLASSES, confusion["counts"][: len(CLASSES)], strict=True):
            total = sum(row)
            for found, n in zip(confusion["reco_classes"], row, strict=True):
                if found != true and n:
                    pairs[f"{n} of {total} targets of class {_plain(true)}", _plain(found)] = n
        if pairs:
            (true, found), _ = pairs.most_common(1)[0]
            answer = "missed" if found == "missed" else f"taken for a {found}"
            parts.append(f"`{name}`, {true} {answer}")
    return "; ".join(parts) or "none"


def _worst_events(samples: dict[str, Any]) -> str:
    rows = []
    for name, sample in samples.items():
        for model in sample["models"]:
            rows += [
                [
                    name,
                    model,
                    str(event["entry"]),
                    str(event["n_true"]),
                    str(event["n_reco"]),
                    *(f"{event[key]:.1f}" for key in ("true_energy", "missed_energy", "fake_energy")),
                    f"{event['share']:.1%}",
                ]
                for event in sample["lines"][model]["extra"]["losses"]["worst"]
            ]
    head = ["sample", "model", "entry", "targets", "found", "energy [GeV]", "missed [GeV]", "fake [GeV]", "share"]
    return table(head, rows, left=(0, 1))


def _worst(sample: dict[str, Any]) -> Iterable[dict[str, Any]]:
    for model in sample["models"]:
        yield from sample["lines"][model]["extra"]["losses"]["worst"]


def _line_title(line: str) -> str:
    return "Pandora" if line == CLASSICAL else f"{line} model"


def _plain(class_name: str) -> str:
    return class_name.replace("_", " ")


def _gallery(images: Mapping[str, str]) -> str:
    return "\n\n".join(f"![{name.replace('_', ' ')}]({link})" for name, link in images.items()) or "(No figures.)"


def table(head: list[str], rows: Iterable[list[str]], *, left: tuple[int, ...]) -> str:
    """A table in Markdown, numbers to the right."""
    separator = ["---" if k in left else "---:" for k in range(len(head))]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, separator, *rows])
