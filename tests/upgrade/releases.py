"""Other releases of isolog as folders: the previous one from git, and later ones made of this."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from spark_stream.testing.local_cluster import ProcessPlace
from tests.conftest import ROOT

PREVIOUS = (ROOT / "tests" / "upgrade" / "previous_release").read_text().strip()
"""The commit of the previous release."""


def previous_release(folder: Path) -> Path:
    """Put the previous release into the folder. Skip the test if its commit is missing."""
    command = ["git", "archive", PREVIOUS, "spark_stream"]
    try:
        archive = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("no git: the previous release cannot be had")
    if archive.returncode:
        pytest.skip(f"this checkout lacks the commit of the previous release, {PREVIOUS}")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(folder, filter="data")
    return folder


def later_release(folder: Path, by: int) -> Path:
    """Put this release into the folder, with a version of the protocol that is higher ``by``."""
    shutil.copytree(
        ROOT / "spark_stream",
        folder / "spark_stream",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    file = folder / "spark_stream" / "protocol" / "connection.py"
    text, count = re.subn(
        r"(?m)^(VERSION: Final = )(\d+)$",
        lambda found: f"{found[1]}{int(found[2]) + by}",
        file.read_text(),
    )
    assert count == 1
    file.write_text(text)
    return folder


def place_of(release: Path) -> ProcessPlace:
    """The place of a process of this release: ``python -m`` searches the working directory."""
    return ProcessPlace(prefix=("env", f"--chdir={release}", f"PYTHONPATH={release}"))
