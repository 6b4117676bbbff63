"""The figures of a model card: how the weights were trained, and what they find; nothing of it is typed by hand."""

from __future__ import annotations

from typing import Any

from sections import replace_section

from flagship.section import confusions, losses_table, table
from flagship.targets import verdicts
from pflow.metrics.report import number_text

__all__ = ["card", "results_text", "training_text"]

RESULTS = """\
Found on the {split} files ({counts}), beside Pandora and the limit that the detector allows, which is perfect
pattern recognition; {no_tracks}matching by energy and angle, errors are half the 68.3% interval. Definitions,
figures, pulls and the worst events are in `RESULTS.md`.

{table}

Energy of targets that nothing matches (missed) and of particles that match no target (fake), as a share of the energy
of all targets:

{losses}

The most frequent wrong answers: {confusions}."""


def card(text: str, *, training: str, results: str) -> str:
    """The text of a model card with the sections ``training`` and ``results`` anew."""
    return replace_section(replace_section(text, "training", training), "results", results)


def training_text(header: dict[str, Any], summary: dict[str, Any], *, parameters: int) -> str:
    """How the weights came about, as a table.

    Parameters
    ----------
    header
        Content of ``model.json``.
    summary
        Content of ``training.json`` (`scripts/training_summary.py`), empty if there is none.
    parameters
        Their number.
    """
    tokeniser, made = header["tokeniser"], header["provenance"]
    recipe = tokeniser["recipe"]
    network = dict(header["network"])
    rows = {
        "detector": f"`{tokeniser['detector']['name']}`, B = {tokeniser['detector']['b_field']:g} T",
        "training files": ", ".join(f"`{name}`" for name in made["train"]),
        "training events": f"{made['n_events']:,}",
        "targets": f"rule `{recipe['rule']}`, from {recipe['e_min']:g} GeV, order `{recipe['order']}`",
        "classes": "five classes of particles" if recipe["coarse"] else _codes(tokeniser["pdg"]["codes"]),
        "hits": _cells(recipe),
        "features of a hit token": _names(recipe["hit_features"]),
        "features of a track token": _names(recipe["track_features"]) or "no tracks are read",
        "network": f"`{network.pop('architecture')}`, {parameters:,} parameters: {_options(network)}",
        "loss": _options(header["loss"].get("weights") or {}) or "weights of 1",
        "optimiser": f"AdamW, {made['batch_size']} events a batch at most, learning rate {made['lr']:g}, "
        f"schedule `{made['schedule']}`, weight decay {made['weight_decay']:g}, average of weights "
        f"{made['ema_decay'] or 'none'}, seed {made['seed']}, precision `{made['precision']}`",
        "steps until these weights": f"{made['step']:,}",
        "versions": f"pflow {header['version']}, torch {made['torch']}",
    }
    if made.get("began_with"):
        rows["began with the weights"] = _beginning(made["began_with"])
    if made.get("repeat"):
        rows["files read more than once in a pass"] = ", ".join(f"`{k}` {n} times" for k, n in made["repeat"].items())
    if summary:
        rows["training in all"] = "; before that ".join(_time(stage) for stage in _stages(summary))
    return table(["training", ""], ([name, value] for name, value in rows.items()), left=(0, 1))


def results_text(results: dict[str, Any], role: str) -> str:
    """What one model finds, as tables.

    Parameters
    ----------
    results
        Content of ``flagship.json``.
    role
        The model: a line of the results.
    """
    samples = {
        name: {**sample, "models": [role]} for name, sample in results["samples"].items() if role in sample["models"]
    }
    found = verdicts({**results, "samples": samples})
    rows = [
        [one.row.sample, one.row.title, *(number_text(n) for n in (one.ours, one.classical, one.limit))]
        for one in found
    ]
    counts = [f"{one['n_events']} of `{name}`, rule `{one['settings']['truth_rule']}`" for name, one in samples.items()]
    return RESULTS.format(
        split=results["split"],
        counts="; ".join(counts),
        no_tracks="" if results["models"][role]["reads_tracks"] else "the limit is the calorimeter's alone; ",
        table=table(["sample", "quantity", "this model", "Pandora", "limit"], rows, left=(0, 1)),
        losses=losses_table(samples),
        confusions=confusions(samples),
    )


def _beginning(made: dict[str, Any]) -> str:
    """Which weights a training began with, and these with which."""
    text = (
        f"of SHA-256 `{made['sha256'][:12]}`: {made['step']:,} steps on "
        f"{', '.join(f'`{name}`' for name in made['train'])}, learning rate {made['lr']:g}"
    )
    return f"{text}; these {_beginning(made['began_with'])}" if made.get("began_with") else text


def _stages(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """The summaries of a training and those before it, the last first."""
    return [summary, *(_stages(summary["before"]) if "before" in summary else [])]


def _time(summary: dict[str, Any]) -> str:
    """What a training took."""
    return (
        f"{summary['steps']:,} steps in {summary['wall_s'] / 60:.0f} minutes on {summary['device']}, "
        f"{summary['threads']} thread{'s' if summary['threads'] > 1 else ''}"
    )


def _codes(codes: list[int]) -> str:
    return f"PDG code{'s' if len(codes) > 1 else ''} {', '.join(map(str, codes))}"


def _names(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _options(options: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in options.items())


def _cells(recipe: dict[str, Any]) -> str:
    """Which hits become tokens."""
    text = f"above {recipe['hit_energy_min']:g} GeV" if recipe["hit_energy_min"] else "all"
    merge = recipe["merge"]
    if merge is None:
        return f"{text}, a token each"
    return (
        f"{text}, summed into cells of {merge['ecal_mm']:g} mm (ECAL) and {merge['hcal_mm']:g} mm (HCAL), "
        f"{merge['layers']} layers deep"
    )
