"""Versions, as installed: pflow's own, and those that an output names."""

import platform
from importlib.metadata import PackageNotFoundError, version

VERSION = version("pflow")


def versions(*packages: str) -> dict[str, str | None]:
    """Versions of Python and of packages; None for one that is not installed."""
    return {"python": platform.python_version(), **{name: _installed(name) for name in packages}}


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
