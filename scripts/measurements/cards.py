"""The tables of the cards of the shipped models: how the weights were trained, and what they find."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from measurements.files import read_json
from measurements.markdown import fill, table
from measurements.tables import confusion_table, loss_table, quantity_table
from pflow.checkpoint.format import Header
from pflow.checkpoint.load import read_checkpoint
from pflow.config import shipped_models, weights_dir
from pflow.tokens.config import TokenConfig


def fill_cards(results: dict[str, Any], tables: Mapping[str, str] | None = None) -> None:
    """Replace the tables in the cards of the shipped models that the results are of; by default those of flagship."""
    for role, about in results["models"].items():
        if about["source"] not in shipped_models():
            continue
        folder = weights_dir() / about["source"]
        checkpoint = read_checkpoint(folder)
        if checkpoint.digest != about["sha256"]:
            print(f"{folder}: its card is left alone, the results are of other weights")
            continue
        summary = read_json(folder / "training.json") if (folder / "training.json").is_file() else {}
        training = training_table(checkpoint.header, summary, parameters=about["parameters"])
        fill(folder / "README.md", {"training": training, **(tables or card_tables(results, role))})


def card_tables(results: dict[str, Any], role: str) -> dict[str, str]:
    """The tables of results of one model."""
    samples = {
        name: {**sample, "models": [role]} for name, sample in results["samples"].items() if role in sample["models"]
    }
    own = {**results, "samples": samples}
    return {
        "results": quantity_table(own, ("sample", "quantity", "pflow", "Pandora", "oracle")),
        "losses": loss_table(own),
        "confusions": confusion_table(own),
    }


def training_table(header: Header, summary: dict[str, Any], *, parameters: int) -> str:
    """How the weights were made.

    Parameters
    ----------
    header
        Of the checkpoint.
    summary
        Content of ``training.json``, empty if there is none.
    parameters
        Their number.
    """
    made, recipe, detector = header.provenance, header.tokeniser.recipe, header.tokeniser.detector
    codes = ", ".join(map(str, header.tokeniser.pdg.codes))
    rows = {
        "detector": f"`{detector.name}`, B = {detector.b_field:g} T",
        "training files": ", ".join(f"`{name}`" for name in made["train"]),
        "training events": f"{made['n_events']:,}",
        "targets": f"rule `{recipe.rule}`, from {recipe.e_min:g} GeV, order `{recipe.order}`",
        "classes": "five classes of particles" if recipe.coarse else f"PDG codes {codes}",
        "hits": _cells(recipe),
        "features of a hit token": _names(recipe.hit_features),
        "features of a track token": _names(recipe.track_features) or "no tracks are read",
        "architecture": f"`{header.model['class_path']}`, {parameters:,} parameters",
        **{name: _options(options) for name, options in header.model["init_args"].items()},
        "optimiser": f"AdamW, {made['batch_size']} events a batch at most, learning rate {made['lr']:g}, "
        f"schedule `{made['schedule']}`, weight decay {made['weight_decay']:g}, average of weights "
        f"{made['ema_decay'] or 'none'}, seed {made['seed']}, precision `{made['precision']}`",
        "steps": f"{made['step']:,}",
        "versions": f"pflow {header.version}, torch {made['torch']}",
    }
    if made.get("began_with"):
        rows["started from the weights"] = _start(made["began_with"])
    if made.get("repeat"):
        rows["files read several times in a pass"] = ", ".join(f"`{k}` {n} times" for k, n in made["repeat"].items())
    if summary:
        rows["time of the stages, the last first"] = "; ".join(_time(stage) for stage in _stages(summary))
    return table(["training", ""], ([name, value] for name, value in rows.items()), left=(0, 1))


def _start(made: dict[str, Any]) -> str:
    text = (
        f"of SHA-256 `{made['sha256'][:12]}`: {made['step']:,} steps on "
        f"{', '.join(f'`{name}`' for name in made['train'])}, learning rate {made['lr']:g}"
    )
    return f"{text}; these {_start(made['began_with'])}" if made.get("began_with") else text


def _stages(summary: dict[str, Any]) -> list[dict[str, Any]]:
    return [summary, *(_stages(summary["before"]) if "before" in summary else [])]


def _time(summary: dict[str, Any]) -> str:
    threads = f"{summary['threads']} thread{'s' if summary['threads'] > 1 else ''}"
    return f"{summary['steps']:,} steps in {summary['wall_s'] / 60:.0f} minutes on {summary['device']}, {threads}"


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _options(options: dict[str, Any]) -> str:
    """Options with their values, those of nested ones too."""
    parts = (_options(value) if isinstance(value, dict) else f"{name} {value}" for name, value in options.items())
    return ", ".join(parts)


def _cells(recipe: TokenConfig) -> str:
    text = f"above {recipe.hit_energy_min:g} GeV" if recipe.hit_energy_min else "all"
    if recipe.merge is None:
        return f"{text}, a token each"
    merge = recipe.merge
    cells = f"{merge.ecal_mm:g} mm (ECAL) and {merge.hcal_mm:g} mm (HCAL), {merge.layers} layers deep"
    return f"{text}, summed into cells of {cells}"
