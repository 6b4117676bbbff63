"""Print the lowest version of each dependency that pyproject.toml declares, as constraints for pip."""

from __future__ import annotations

import itertools
import re
import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(\[.*\])?>=(?P<version>[\w.]+)(,<[\w.]+)?$")


def lowest(project: Path = PROJECT) -> dict[str, str]:
    """Version by name, of the dependencies and of all extras; those without a lowest version are left out."""
    declared = tomllib.loads(project.read_text("utf-8"))["project"]
    lines = itertools.chain(declared["dependencies"], *declared["optional-dependencies"].values())
    return {found["name"]: found["version"] for line in lines if (found := REQUIREMENT.match(line))}


if __name__ == "__main__":
    for name, version in sorted(lowest().items()):
        print(f"{name}=={version}")
