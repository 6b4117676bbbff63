"""Verbs of trained models: turn events into particles, calibrate a model, export it."""

from __future__ import annotations

import argparse
import functools
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pflow.cli.main import (
    OTHER_DETECTOR,
    add_file_options,
    add_options,
    choice,
    progress_bar,
    read_options,
    warn_of_training,
)
from pflow.errors import ConfigError, InputError, missing_package
from pflow.io.atomic import check_output

if TYPE_CHECKING:
    from pflow.inference.files import Summary


def reconstruct_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pflow reconstruct`."""
    parser.add_argument("inputs", nargs="+", metavar="IN.root", help="event files; truth is not needed")
    add_options(parser, "checkpoint", otherwise="general")
    place = parser.add_mutually_exclusive_group(required=True)
    add_options(
        place,
        "output",
        required=False,
        metavar="OUT.root",
        help="one file for all inputs, which must be of one detector (--format edm4hep: one input)",
    )
    place.add_argument(
        "--output-dir",
        metavar="DIR",
        help="folder for one output per input, IN.reco.root; finished outputs of the same input, model and settings "
        "are kept",
    )
    text = (
        "ttree, rntuple: particles as plain branches; edm4hep: as EDM4hep 1.0 collections for podio, beside the "
        "input's collections that they refer to"
    )
    parser.add_argument("--format", **choice("ttree", "rntuple", "edm4hep", text=text))
    text = "with --format edm4hep: write links from particles to the input's Monte Carlo particles"
    parser.add_argument("--mc-links", action="store_true", help=text)
    parser.add_argument(
        "--candidates",
        nargs="?",
        const=0.05,
        type=float,
        metavar="P",
        help="also write candidates as a second collection: particles that more probably do not exist, with an "
        "existence probability of at least P (default: %(const)s)",
    )
    parser.add_argument(
        "--merge-mm",
        type=float,
        metavar="MM",
        help="merge ECAL cells to this size before the network; it must lie within the sizes of the training (general: "
        "5 to 40 mm). Smaller cells separate closer photons, but take longer",
    )
    add_file_options(parser, detector=OTHER_DETECTOR)
    add_options(
        parser,
        "on-error",
        help="unusable entry: stop without output, or write a flagged empty entry and count it in a warning; with "
        "--output-dir also unusable file: stop, or list it at the end (default: raise)",
    )
    add_options(parser, "max-particles", "max-hits", "batch-size", "chunk-size", "device", "cluster", "force")
    add_options(parser, "quiet", help="no progress bar")


def reconstruct(args: argparse.Namespace) -> int:
    """Turn events into particles with a trained model: ROOT files in, ROOT files out, entry by entry."""
    from pflow.inference.files import reconstruct_files

    options = {name: value for name, value in vars(args).items() if name not in ("inputs", "quiet")}
    with progress_bar(quiet=args.quiet) as show:
        # A bar at once: the model is loaded before the first events are done.
        show("reconstructing", 0, None)
        options["on_progress"] = functools.partial(show, "reconstructing")
        summary = reconstruct_files(args.inputs, **options)
    print(_report(summary, args.output or args.output_dir))
    return 0


def _report(summary: Summary, place: str) -> str:
    """One line on the results; counts of zero are left out."""
    n_outputs = len(summary.written) + len(summary.finished_before) + len(summary.failed)
    counts = [
        (len(summary.written) if n_outputs > 1 else 0, "files written"),
        (len(summary.finished_before), "there before"),
        (len(summary.failed), "left out"),
        (summary.flagged["BAD_INPUT"], "skipped"),
        (summary.flagged["UNUSABLE_HITS"], "with hits left out"),
        (summary.flagged["UNUSABLE_TRACKS"], "with tracks left out"),
        (summary.flagged["NOT_FINITE"], "whose numbers are not finite"),
        (summary.flagged["MAX_PARTICLES"], "cut at their largest number of particles"),
    ]
    events = [f"{summary.n_events} events", f"{summary.n_particles} particles"]
    happened = [f"{n} {what}" for n, what in counts if n]
    said = ", ".join([*events, *happened, f"{summary.seconds:.1f} s"])
    return f"{place}: {said} ({summary.model}, detector {summary.detector}, device {summary.device})"


CHOICES = {
    "eos_threshold": "probabilities of the end of the sequence from which decoding stops",
    "existence_threshold": "existence probabilities from which on the refinement keeps a particle",
}
"""Decoding options that are compared; the second of models with a refinement alone."""


def calibrate_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pflow calibrate`."""
    text = "event files with truth, not the test files; patterns may be quoted"
    parser.add_argument("inputs", nargs="+", metavar="VAL.root", help=text)
    add_options(parser, "checkpoint")
    for name, text in CHOICES.items():
        option, text = f"--{name.replace('_', '-')}", f"{text} (default: the model's own)"
        parser.add_argument(option, nargs="+", type=float, metavar="P", help=text)
    text = (
        "how to choose among the combinations, by means over the files: energy: largest energy-weighted efficiency "
        "minus fake energy fraction; number: most events with the right number of particles; reference: fewest fakes "
        "among those at least as efficient as the files' reconstructed particles"
    )
    parser.add_argument("--choose-by", **choice("energy", "number", "reference", text=text))
    add_file_options(parser, detector=OTHER_DETECTOR)
    add_options(parser, "on-error", "batch-size", "chunk-size", "device")
    text = "folder to create: calibrated weights and header, as from `pflow export --format weights`"
    add_options(parser, "output", metavar="DIR", help=text)
    add_options(parser, "force")


def calibrate(args: argparse.Namespace) -> int:
    """Calibrate a model on validation files, not training files: decoding options, photon energies, uncertainties."""
    from pflow import calibration
    from pflow.checkpoint import FILES, load_model, write_weights
    from pflow.io.open import matching
    from pflow.io.root import file_uuid
    from pflow.physics.pdg import CLASSES

    # Before the model is loaded and run: an output that exists ends the command at once.
    check_output(args.output, inputs=[args.checkpoint], force=args.force, holds=FILES)
    model = load_model(args.checkpoint)
    if args.existence_threshold and not model.reconstructor.first_stage_modules:
        raise ConfigError(f"--existence-threshold: {args.checkpoint} has no refinement")
    paths = matching(args.inputs)
    uuids = list(map(file_uuid, paths))
    # The same particles twice would pass for enough of them.
    if again := [paths[n] for n, uuid in enumerate(uuids) if uuid and uuid in uuids[:n]]:
        raise InputError("is given twice, or a copy of another one of these files", file=again[0])
    warn_of_training(model.config, paths, calibration=False)
    choices = {name: getattr(args, name) for name in CHOICES}
    decodings = calibration.decoding_grid(model.reconstructor.decoding, **choices)
    options = {name: getattr(args, name) for name in ("batch_size", "chunk_size", "device")}
    with progress_bar(quiet=False, transient=True) as show:
        show("calibrating", 0, None)
        options["on_progress"] = lambda n_done: show("calibrating", n_done, None)
        trials = calibration.calibrate(model, paths, decodings, read_options(args), **options)
    chosen = calibration.best(trials, args.choose_by)
    for trial in trials:
        given = {name: getattr(trial.decoding, name, None) for name in CHOICES}
        values = [f"{name} {value:g}" for name, value in given.items() if value is not None]
        reference = "not in all files" if math.isnan(trial.reference) else f"{trial.reference:.4f}"
        kept = " (kept)" if trial is chosen and len(trials) > 1 else ""
        print(
            f"{', '.join(values)}: energy-weighted efficiency {trial.efficiency:.4f} (reference: "
            f"{reference}), fake energy fraction {trial.fakes:.4f}, right number of particles in "
            f"{trial.number_right:.4f} of the events{kept}"
        )
    made = chosen.calibration.over(model.calibration)
    few = f"fewer than {calibration.MIN_PHOTONS} matched photons in each range of energy"
    remedy = "give more events, or a file of single photons beside them"
    if chosen.photons_named < calibration.FEW_NAMED:
        remedy = f"{chosen.photons_named:.0%} of the matched true photons are reconstructed as photons, others as"
        remedy += " another class, whose energies are not calibrated"
    if response := chosen.calibration.photon_response:
        points = zip(response.log_energy, response.log_factor, strict=True)
        texts = [f"{math.exp(factor):.3f} at {math.exp(energy):.2g} GeV" for energy, factor in points]
        others = (
            "as before" if model.calibration and model.calibration.photon_response else "times the nearest of these"
        )
        low, high = (math.exp(response.log_energy[end]) for end in (0, -1))
        outside = f"below {low:.2g} and above {high:.2g} GeV {others}, {few} there"
        print(f"photon energies: times {', '.join(texts)}; {outside}: {remedy}")
    else:
        state = "as before" if made.photon_response else "not calibrated"
        print(f"photon energies: {state}, {few}: {remedy}")
    if model.reconstructor.gives_uncertainties:
        earlier = [name for name in made.energy if name not in chosen.calibration.energy]
        missing = [name for name in CLASSES if name not in made.energy]
        for state, names, least in (
            ("as before", earlier, calibration.MIN_REPLACING),
            ("not calibrated", missing, calibration.MIN_PULLS),
        ):
            if names:
                print(f"uncertainties of {', '.join(names)}: {state}, fewer than {least} matched particles of each")
    changes: dict[str, Any] = {"calibration": made, "decoding": chosen.decoding}
    if made != model.calibration or chosen.decoding != model.reconstructor.decoding:
        # Of an earlier calibration are the curves and factors that stay.
        earlier = model.config["provenance"].get("calibrated_on", ())
        on = {"files": [Path(path).name for path in paths], "uuids": list(filter(None, uuids))}
        # Uncertainties and thresholds hold for all detectors.
        detectors = chosen.detectors if chosen.calibration.photon_response else {}
        changes["calibrated_on"] = [*earlier, {**on, "detectors": detectors}]
    for written in write_weights(args.checkpoint, args.output, **changes, force=args.force):
        print(f"{written}: {written.stat().st_size / 1e3:.0f} kB")
    return 0


def export_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pflow export`."""
    add_options(parser, "checkpoint")
    text = (
        "onnx: graphs (encoder.onnx, decoder.onnx and, for some networks, refinement.onnx) and tokens.json, which "
        "says how to use them, for C++; weights: model.safetensors and model.json, a checkpoint for pflow"
    )
    parser.add_argument("--format", **choice("onnx", "weights", text=text))
    text = "detector of the graphs (built-in name or YAML file), for a model of any detector"
    add_options(parser, "detector", help=f"{text} (default: that of its first training file)")
    add_options(parser, "output", metavar="DIR", help="folder to make")
    add_options(parser, "force")


def export(args: argparse.Namespace) -> int:
    """Export a trained model: as ONNX graphs for inference without Python, or as weights to pass on."""
    from pflow.checkpoint import EXPORT_FILES, load_model, write_weights

    if args.format == "weights":
        if args.detector is not None:
            raise ConfigError("--detector: graphs alone (--format onnx) are for one detector; leave it out")
        written = write_weights(args.checkpoint, args.output, force=args.force)
    else:
        try:
            from pflow.export.pointing import export_model
        except ImportError as error:
            raise missing_package(str(error.name), "graphs for C++", extra="export") from error
        check_output(args.output, force=args.force, holds=EXPORT_FILES)  # before the model is loaded
        model = load_model(args.checkpoint)
        if args.detector is None and model.tokeniser.config.geometry:
            print(f"graphs for detector '{model.tokeniser.detector.name}' alone: --detector names another one")
        written = export_model(model, args.output, detector=args.detector, force=args.force)
    for path in written:
        print(f"{path}: {path.stat().st_size / 1e3:.0f} kB")
    return 0
