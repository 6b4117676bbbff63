"""Options that several verbs share, declared once."""

from __future__ import annotations

import argparse

__all__ = ["add_checkpoint_option", "add_file_options"]


def add_file_options(parser: argparse.ArgumentParser, *, detector: str) -> None:
    """Declare how event files are to be read: ``--detector``, ``--schema`` and ``--layout``.

    Parameters
    ----------
    parser
        The verb's parser.
    detector
        Help text of ``--detector``, whose default differs from verb to verb.
    """
    parser.add_argument("--detector", help=detector)
    parser.add_argument("--schema", help="how the events are laid out, if looking at the file is not enough")
    parser.add_argument("--layout", help="YAML table from branches to fields, for flat files of your own")


def add_checkpoint_option(parser: argparse.ArgumentParser) -> None:
    """Declare which trained model is meant: ``--checkpoint``."""
    parser.add_argument(
        "--checkpoint",
        required=True,
        metavar="MODEL",
        help="checkpoint that `pflow fit` wrote, folder of weights that `pflow export` wrote, or name of a model that "
        "comes with pflow",
    )
