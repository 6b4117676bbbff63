"""Write a trained model for use elsewhere: as ONNX, for inference without Python, or its weights alone, to pass on."""

from __future__ import annotations

import argparse

from pflow.cli.options import add_option
from pflow.errors import missing_package


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pflow export`."""
    add_option(parser, "checkpoint")
    parser.add_argument(
        "--format",
        choices=("onnx", "weights"),
        default="onnx",
        help="onnx: graphs (encoder.onnx, decoder.onnx and, for some networks, refinement.onnx) and tokens.json, which "
        "says how to use them, for C++; weights: model.safetensors and model.json, a checkpoint for pflow (default: "
        "onnx)",
    )
    add_option(
        parser,
        "detector",
        help="built-in name or YAML file of the detector that graphs are for, of a model for any detector (default: "
        "the training's)",
    )
    add_option(parser, "output", metavar="DIR", help="folder to make")
    add_option(parser, "force")


def run(args: argparse.Namespace) -> int:
    """Export the model; the folder appears only when whole."""
    from pflow.checkpoint import EXPORT_FILES, load_model, write_weights
    from pflow.io.atomic import check_output

    if args.format == "weights":
        written = write_weights(args.checkpoint, args.output, force=args.force)
    else:
        try:
            from pflow.export.pointing import export_model
        except ImportError as error:
            raise missing_package(str(error.name), "graphs for C++", extra="export") from error
        check_output(args.output, force=args.force, holds=EXPORT_FILES)  # before the model is loaded
        written = export_model(load_model(args.checkpoint), args.output, detector=args.detector, force=args.force)
    for path in written:
        print(f"{path}: {path.stat().st_size / 1e3:.0f} kB")
    return 0
