"""Write a trained model as ONNX files, for inference without Python."""

from __future__ import annotations

import argparse

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pflow export`."""
    parser.add_argument("--checkpoint", required=True, metavar="CKPT", help="checkpoint that `pflow fit` wrote")
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="DIR",
        help="folder to make: encoder.onnx, decoder_step.onnx and tokens.json, which says how to use them",
    )


def run(args: argparse.Namespace) -> int:
    """Export the model; the folder appears only when whole."""
    from pflow.export.convert import require_onnx
    from pflow.export.folder import check_folder, export_model
    from pflow.reco.load import load_model

    check_folder(args.output)
    require_onnx()
    for path in export_model(load_model(args.checkpoint), args.output):
        print(f"{path}: {path.stat().st_size / 1e3:.0f} kB")
    return 0
