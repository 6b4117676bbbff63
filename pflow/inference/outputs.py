"""Outputs of a reconstruction: their names, how they are written, and whether one is there already."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pflow.errors import ConfigError, InputError, check_choice
from pflow.io.atomic import check_output
from pflow.io.edm4hep.writer import Edm4hepRecoWriter
from pflow.io.open import EventFile
from pflow.io.particles_root import FORMATS, NOTE, RecoWriter, count_entries, read_provenance

__all__ = ["OutputOptions", "is_finished", "output_paths"]

SUFFIXES = (".root", ".h5", ".hdf5", ".edm4hep")
"""Endings of event files that the name of an output does not repeat."""

INPUT_KEYS = ("uuid", "entries", "schema", "truth_tracks")
"""Fields of an input that must agree in the provenance of two outputs for them to be the same; its path may differ."""

WAYS = ("on_error", "batch_size", "chunk_size", "device", "cluster")
"""Options that the particles of an event do not depend on."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """How outputs are written; see `pflow.inference.files.reconstruct_files`."""

    format: Literal["ttree", "rntuple", "edm4hep"] = "ttree"
    keep_input: bool = False
    mc_links: bool = False
    force: bool = False

    def __post_init__(self) -> None:
        check_choice(self.format, (*FORMATS, "edm4hep"), "output format")
        if (self.keep_input or self.mc_links) and self.format != "edm4hep":
            raise ConfigError(
                f"{'keep_input' if self.keep_input else 'mc_links'} is for the output format edm4hep, not {self.format}"
            )

    @property
    def needs_events(self) -> bool:
        """Whether the writer needs the events and their open files too."""
        return self.format == "edm4hep"

    def check(self, path: Path, inputs: Sequence[str]) -> None:
        """Refuse a place that cannot be written to, as `pflow.io.atomic.check_output` does."""
        check_output(path, inputs=inputs, replace=NOTE.encode(), force=self.force)

    def writer(
        self, path: Path, files: Sequence[EventFile], *, provenance: Mapping[str, Any], inputs: Sequence[str]
    ) -> RecoWriter | Edm4hepRecoWriter:
        """A writer of an output.

        Parameters
        ----------
        path
            Where it goes.
        files
            The open files that the events come from; used where `needs_events`.
        provenance
            Where the particles come from.
        inputs
            Files that must not be overwritten.

        Raises
        ------
        ConfigError, InputError
            As of `pflow.io.particles_root.RecoWriter` and `pflow.io.edm4hep.writer.Edm4hepRecoWriter`.
        """
        if self.format == "edm4hep":
            if len(files) > 1:
                raise ConfigError(f"cannot write {path}: EDM4hep outputs have one input each; name a folder for them")
            return Edm4hepRecoWriter(
                path,
                files[0],
                provenance=provenance,
                mc_links=self.mc_links,
                inputs=inputs,
                force=self.force,
            )
        return RecoWriter(path, provenance=provenance, format=self.format, inputs=inputs, force=self.force)


def output_paths(inputs: Sequence[str], folder: Path, format: str) -> list[Path]:
    """Name of the output of each input: ``a/run7.root`` becomes ``run7.reco.root`` in the folder.

    Outputs of podio's format end with ``.reco.edm4hep.root``.

    Raises
    ------
    ConfigError
        Two inputs of the same name, or one given twice.

    Examples
    --------
    >>> [path.name for path in output_paths(["a/run7.edm4hep.root", "b/run8.root"], Path("reco"), "ttree")]
    ['run7.reco.root', 'run8.reco.root']
    """
    ending = ".reco.edm4hep.root" if format == "edm4hep" else ".reco.root"
    taken: dict[Path, str] = {}
    for path in inputs:
        name = os.path.basename(path.partition("?")[0])
        while name.endswith(SUFFIXES):
            name = name.rpartition(".")[0]
        output = folder / f"{name}{ending}"
        if output in taken:
            raise ConfigError(
                f"the outputs of {taken[output]} and {path} would both be {output}: give inputs of different names, "
                "or reconstruct them into different folders"
            )
        taken[output] = path
    return list(taken)


def is_finished(output: Path, provenance: Mapping[str, Any], n_entries: int) -> bool:
    """Whether an output is there and whole: made from the same input by the same model with the same settings.

    Parameters
    ----------
    output
        Where it would be.
    provenance
        What it should have as provenance.
    n_entries
        Entries that it should have.

    Returns
    -------
    bool
        False where nothing is there, or a file that is truncated, damaged or no output of pflow.

    Raises
    ------
    ConfigError
        A whole output with another provenance; names what differs.
    """
    if not output.is_file():
        return False
    try:
        found, n_found = read_provenance(output), count_entries(output)
    except InputError:
        return False
    if n_found != n_entries:
        return False
    ours, theirs = _essence(provenance), _essence(found)
    differing = [name for name in ours if ours[name] != theirs.get(name)]
    if provenance["options"]["on_error"] == "raise" and {"BAD_INPUT", "NOT_FINITE"} & set(found.get("flagged", ())):
        differing.append("on_error (entries were skipped)")
    if differing:
        what = ", ".join(
            f"{name} {theirs.get(name)} there and {ours[name]} here" if name in ours else name for name in differing
        )
        raise ConfigError(
            f"{output} was made otherwise: {what}; choose another folder, or make the file anew with --force"
        )
    return True


def _essence(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """What the particles of an output depend on, by name."""
    options = {name: value for name, value in provenance.get("options", {}).items() if name not in WAYS}
    inputs = provenance.get("inputs", ())
    return {
        "pflow": provenance.get("pflow_version"),
        "checkpoint": str(provenance.get("checkpoint", {}).get("sha256"))[:12],
        **{f"input's {key}": [entry.get(key) for entry in inputs] for key in INPUT_KEYS},
        **options,
        **{f"decoding's {name}": value for name, value in provenance.get("decoding", {}).items()},
    }
