"""Print the requirements of groups in pyproject.toml, one a line, for ``pip install -r``.

``build`` means the build system's and the package's own; every other name is an optional group. torch is left
out: the Makefile pins and installs it. So is cmake where the system's is new enough.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def cmake_version() -> tuple[int, ...]:
    """Of the cmake on PATH; () when there is none."""
    try:
        text = subprocess.run(["cmake", "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ()
    found = re.search(r"(\d+)\.(\d+)", text)
    return tuple(map(int, found.groups())) if found else ()


def wanted(requirement: str) -> bool:
    name = re.match(r"[\w-]+", requirement)[0]
    if name == "cmake":
        minimum = tuple(map(int, re.search(r">=(\d+)\.(\d+)", requirement).groups()))
        return cmake_version() < minimum
    return name != "torch"


def main(groups: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    known = project["project"]["optional-dependencies"]
    build = project["build-system"]["requires"] + project["project"]["dependencies"]
    lines = [line for group in groups for line in (build if group == "build" else known[group])]
    print("\n".join(filter(wanted, dict.fromkeys(lines))))


main(sys.argv[1:])
