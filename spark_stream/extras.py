"""The command that adds an extra to this installation of isolog.

isolog is not in an index yet. pip records the origin of a distribution that came from elsewhere in
``direct_url.json`` (PEP 610): a wheel, a checkout or a repository. The command names that origin
again, with the extra. If the origin was removed, or is a repository of this machine, the command
names the requirements of the extra.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from importlib.metadata import Distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

_CHECKOUT: Final = Path(__file__).resolve().parents[1]


def install_hint(extra: str) -> str:
    """Return the remedy of an error about a package of this extra."""
    return f"Install it: {install_command(extra)}."


def install_command(extra: str, name: str = "isolog") -> str:
    """Return the command that installs this extra from the origin of the installed isolog."""
    wanted = [f"{name}[{extra}]"]
    # An editable installation has a second distribution without an origin, in its checkout.
    all_found = list(Distribution.discover(name=name))
    for found in all_found:
        text = found.read_text("direct_url.json")
        if text is not None:
            wanted = _from_origin(json.loads(text), wanted[0]) or _requirements(found, extra)
            break
    else:
        if (_CHECKOUT / "setup.cfg").exists() or not all_found:
            wanted = [f"{_CHECKOUT}[{extra}]"]
    return f"{_install()} {shlex.join(wanted)}"


def _from_origin(recorded: dict[str, Any], wanted: str) -> list[str]:
    """Return pip's arguments for this origin. The list is empty if pip cannot name it again."""
    url, vcs = recorded["url"], recorded.get("vcs_info")
    below = f"#subdirectory={recorded['subdirectory']}" if "subdirectory" in recorded else ""
    parts = urlsplit(url)
    if vcs is not None:
        # pip before 24.1 refuses an address without a host.
        return [f"{wanted} @ {vcs['vcs']}+{url}@{vcs['commit_id']}{below}"] if parts.netloc else []
    if parts.scheme != "file":
        return [f"{wanted} @ {url}{below}"]
    from urllib.request import url2pathname  # it loads OpenSSL

    path = Path(url2pathname(parts.path))
    if not path.exists():
        return []
    editable = recorded.get("dir_info", {}).get("editable", False)
    return [*(["-e"] if editable else []), f"{path}{wanted[wanted.index('[') :]}"]


def _requirements(found: Distribution, extra: str) -> list[str]:
    """Return the requirements of an extra, with those of the extras that it includes."""
    wanted: list[str] = []
    for each in found.requires or ():
        requirement, _, marker = each.partition(";")
        if not re.search(rf"""extra == ["']{re.escape(extra)}["']""", marker):
            continue
        inner = re.fullmatch(rf"{re.escape(found.name)}\[([\w,-]+)\]", requirement.strip())
        names = inner[1].split(",") if inner else ()
        wanted += [requirement.strip()] if inner is None else []
        wanted += [one for part in names for one in _requirements(found, part)]
    return list(dict.fromkeys(wanted))


def _install() -> str:
    """Return the installing command for the Python of this process. uv makes them without pip."""
    python = shlex.quote(sys.executable)
    if find_spec("pip") is None and shutil.which("uv") is not None:
        return f"uv pip install --python {python}"
    here, found = Path(sys.executable).parent, shutil.which("pip")
    if found is not None and Path(found).parent == here:
        return "pip install"
    return f"{python} -m pip install"
