"""Show what is needed to repeat an output: model, versions, options and inputs, and the command."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pflow provenance`."""
    parser.add_argument(
        "file",
        metavar="FILE",
        help="output of `pflow reconstruct`, metrics.json of `pflow evaluate`, or a trained model (a checkpoint, a "
        "folder of weights, or the name of one that comes with pflow)",
    )
    parser.add_argument("--json", action="store_true", help="print all that is kept, as JSON")


def run(args: argparse.Namespace) -> int:
    """Print it."""
    import json

    made = _read(args.file)
    print(json.dumps(made, indent=2) if args.json else "\n".join(_lines(made)))
    return 0


def _read(file: str) -> Mapping[str, Any]:
    """The provenance of a file, with its kind.

    Raises
    ------
    InputError
        A file that holds none.
    """
    import json
    from pathlib import Path

    from pflow.checkpoint.load import read_checkpoint
    from pflow.errors import reading
    from pflow.io.particles_root import read_provenance

    path = Path(file)
    if path.suffix == ".json":
        with reading("expected the metrics.json of an evaluation", file=file):
            return {"kind": "evaluation", **json.loads(path.read_text("utf-8"))["inputs"]}
    if path.is_file() and path.suffix == ".root":
        return {"kind": "reconstruction", **read_provenance(file)}
    model = read_checkpoint(file)
    return {
        "kind": "model",
        "checkpoint": {"path": model.path, "sha256": model.digest},
        "pflow_version": model.header.version,
        "training": dict(model.header.provenance),
    }


def _lines(made: Mapping[str, Any]) -> Iterator[str]:
    if made["kind"] == "evaluation":
        yield _line("truth", ", ".join(made["truth"]))
        for name, path in made["reco"].items():
            yield _line(name, path)
            found = made.get("provenance", {}).get(name)
            if found is not None:
                yield from _of_reconstruction(found)
    elif made["kind"] == "model":
        yield from _of_checkpoint(made["checkpoint"])
        yield _line("made by", f"pflow {made['pflow_version']}")
        yield from (_line(key, value) for key, value in made["training"].items())
    else:
        yield from _of_reconstruction(made)


def _of_reconstruction(made: Mapping[str, Any]) -> Iterator[str]:
    import shlex

    from pflow.inference.provenance import changed_decoding, command

    packages = [f"{name} {version}" for name, version in made.get("versions", {}).items()]
    yield _line("made by", ", ".join([f"pflow {made.get('pflow_version')}", *packages]))
    if "machine" in made:
        yield _line("machine", _said(made["machine"]))
    yield from _of_checkpoint(made.get("checkpoint", {}))
    for one in made.get("inputs", ()):
        size = "" if one.get("bytes") is None else f", {one['bytes']} bytes"
        yield _line("input", f"{one['path']}: {one['entries']} entries, {one['schema']}{size}, UUID {one['uuid']}")
    yield _line("options", _said(made.get("options", {})))
    if changed := changed_decoding(made):
        yield _line("decoding", f"not the model's own: {_said(changed)}")
    if "flagged" in made:
        yield _line("flagged", _said(made["flagged"]))
    yield _line("again with", shlex.join(command(made, "OUT.root")))


def _of_checkpoint(checkpoint: Mapping[str, Any]) -> Iterator[str]:
    yield _line("model", checkpoint.get("path"))
    yield _line("SHA-256", checkpoint.get("sha256"))


def _line(name: str, text: Any) -> str:
    return f"{name:<16} {text}"


def _said(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items() if value not in (None, False))
