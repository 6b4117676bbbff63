"""The version of pflow, as installed."""

from importlib.metadata import version

__all__ = ["VERSION"]

VERSION = version("pflow")
