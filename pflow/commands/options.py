"""Options that several verbs share, declared once."""

from __future__ import annotations

import argparse

__all__ = ["add_file_options"]


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
