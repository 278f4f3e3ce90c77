"""The command for an extra names the place from which isolog was installed."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spark_stream import extras
from spark_stream.extras import install_command
from tests.conftest import ROOT

METADATA = """Metadata-Version: 2.4
Name: example
Version: 1
Provides-Extra: small
Requires-Dist: anyio>=4; extra == "small"
Provides-Extra: large
Requires-Dist: example[small]; extra == "large"
Requires-Dist: typer>=1,<2; extra == "large"
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The metadata of an installed distribution."""
    folder = tmp_path / "site-packages" / "example-1.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(METADATA)
    monkeypatch.syspath_prepend(folder.parent)
    monkeypatch.setattr(extras, "_CHECKOUT", folder.parent)
    monkeypatch.setattr(extras, "_install", lambda: "pip install")
    return folder


def command(installed: Path, extra: str = "large", **recorded: Any) -> str:
    (installed / "direct_url.json").write_text(json.dumps(recorded))
    return install_command(extra, "example")


def test_a_wheel_or_a_checkout_is_named_by_its_path(installed: Path, tmp_path: Path) -> None:
    wheel = tmp_path / "a b" / "example-1-py3-none-any.whl"
    wheel.parent.mkdir()
    wheel.touch()
    assert command(installed, url=wheel.as_uri(), archive_info={}) == (
        f"pip install '{wheel}[large]'"
    )
    folder = wheel.parent.as_uri()
    assert command(installed, url=folder, dir_info={}) == f"pip install '{wheel.parent}[large]'"
    assert command(installed, url=folder, dir_info={"editable": True}) == (
        f"pip install -e '{wheel.parent}[large]'"
    )


def test_a_repository_is_named_with_the_installed_commit(installed: Path) -> None:
    vcs = {"vcs": "git", "requested_revision": "main", "commit_id": "12ab"}
    url = "https://git.example.org/logs.git"
    assert command(installed, url=url, vcs_info=vcs) == (
        f"pip install 'example[large] @ git+{url}@12ab'"
    )
    assert command(installed, url=url, vcs_info=vcs, subdirectory="python") == (
        f"pip install 'example[large] @ git+{url}@12ab#subdirectory=python'"
    )


def test_requirements_replace_a_repository_of_this_machine(installed: Path) -> None:
    """pip before 24.1 refuses a requirement whose address has no host."""
    vcs = {"vcs": "git", "commit_id": "12ab"}
    hint = command(installed, "small", url="file:///srv/logs.git", vcs_info=vcs)
    assert hint == "pip install 'anyio>=4'"


def test_a_wheel_of_a_server_is_named_by_its_address(installed: Path) -> None:
    url = "https://wheels.example.org/example-1-py3-none-any.whl"
    assert command(installed, url=url, archive_info={}) == f"pip install 'example[large] @ {url}'"


def test_requirements_replace_an_origin_that_was_removed(installed: Path, tmp_path: Path) -> None:
    """They are those of the extra, and of the extras that it includes."""
    away = (tmp_path / "away.whl").as_uri()
    assert command(installed, url=away, archive_info={}) == ("pip install 'anyio>=4' 'typer>=1,<2'")
    assert command(installed, "small", url=away, archive_info={}) == "pip install 'anyio>=4'"


def test_without_a_recorded_origin_it_came_from_an_index(installed: Path) -> None:
    assert install_command("small", "example") == "pip install 'example[small]'"


def test_a_checkout_that_was_never_installed_is_named(installed: Path) -> None:
    (installed / "METADATA").unlink()
    installed.rmdir()
    assert install_command("small", "example") == f"pip install '{installed.parent}[small]'"


def test_pip_of_another_python_is_avoided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert install_command("certs").startswith(f"{shlex.quote(sys.executable)} -m pip install ")


def test_uv_installs_into_an_environment_without_pip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    uv = tmp_path / "uv"
    uv.touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    python = shlex.quote(sys.executable)
    assert install_command("certs").startswith(f"uv pip install --python {python} ")
    uv.unlink()
    assert install_command("certs").startswith(f"{python} -m pip install ")


def test_other_texts_name_no_index() -> None:
    """isolog is not in an index yet. Errors take the command from ``spark_stream/extras.py``."""
    listed = subprocess.run(
        ["git", "ls-files", "--", "*.py", "*.md", "*.toml", "*.js", "*.ipynb", "Dockerfile"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    of_index = re.compile(r"pip install\s+['\"]?isolog\b")
    kept = ("tests/", "docs/decisions/")
    assert [
        name
        for name in listed
        if not name.startswith(kept) and of_index.search((ROOT / name).read_text())
    ] == []
