"""Kafka, Kafka Connect and Spark's Kafka connector, from Maven Central, checked and kept.

Apache Ivy, which PySpark brings along, resolves ``ivy.xml`` and compares each jar with the SHA-1
of the repository. Then each is compared with ``jars.sha256``, which is in the repository of this
bench, so that another run measures the same bytes. ``python -m bench.kafka.jars`` fetches them, for
tests too. With other versions in ``ivy.xml``, ``--write`` writes that file again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

REPOSITORY: Final = "MAVEN_CENTRAL"
"""The environment variable with the address of a mirror."""

_CENTRAL: Final = "https://repo1.maven.org/maven2/"
_HERE: Final = Path(__file__).parent
CHECKSUMS: Final = _HERE / "jars.sha256"
_PARTS: Final = ("broker", "connector", "tools", "connect")


class WrongJars(Exception):
    """The jars are unavailable, or differ from those of the bench."""


def default_cache() -> Path:
    """The folder of jars: beside the sources, and not tracked."""
    return _HERE.parent.parent / ".cache" / "kafka"


def java() -> str:
    """The ``java`` of JAVA_HOME, else that of PATH."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else "java"


def fetched(cache: Path) -> dict[str, list[Path]]:
    """Return the jars of each part. Right jars in the cache are not fetched.

    Raises:
        WrongJars: nothing came, or not what ``jars.sha256`` names.
    """
    wanted = checksums(CHECKSUMS.read_text())
    folder = cache / "jars"
    if differences(folder, wanted):
        _fetch(cache, folder)
    wrong = differences(folder, wanted)
    if wrong:
        shutil.rmtree(folder)
        raise WrongJars(f"not the jars of {CHECKSUMS.name}: {', '.join(wrong)}")
    return {part: sorted((folder / part).glob("*.jar")) for part in _PARTS}


def checksums(text: str) -> dict[str, str]:
    """SHA-256 by file, in the format of ``sha256sum``."""
    lines = (line.split() for line in text.splitlines() if line)
    return {name: digest for digest, name in lines}


def found(folder: Path) -> dict[str, str]:
    """SHA-256 of each existing file."""
    digests = {}
    for path in sorted(folder.glob("*/*.jar")):
        with path.open("rb") as file:
            name = str(path.relative_to(folder))
            digests[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return digests


def differences(folder: Path, wanted: Mapping[str, str]) -> list[str]:
    """The files that are missing, extra or different."""
    there = found(folder)
    return sorted(name for name in {*there, *wanted} if there.get(name) != wanted.get(name))


def _fetch(cache: Path, folder: Path) -> None:
    """Have Ivy resolve and download. It keeps existing files."""
    import pyspark  # its environment also runs tests without it

    shutil.rmtree(folder, ignore_errors=True)
    ivy = next(Path(pyspark.__file__).parent.joinpath("jars").glob("ivy-*.jar"))
    for part in _PARTS:
        ran = subprocess.run(
            [
                java(),
                f"-Dbench.cache={cache}",
                f"-Dbench.repository={os.environ.get(REPOSITORY, _CENTRAL)}",
                "-jar",
                str(ivy),
                *("-settings", str(_HERE / "ivysettings.xml")),
                *("-ivy", str(_HERE / "ivy.xml")),
                *("-confs", part),
                *("-types", "jar", "bundle"),
                *("-retrieve", f"{folder / part}/[artifact]-[revision].[ext]"),
                "-warn",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if ran.returncode:
            raise WrongJars(f"Ivy could not fetch the jars:\n{ran.stdout}")


def main(arguments: Sequence[str]) -> int:
    """Fetch the jars. With ``--write``, write their checksums too. Return the exit status."""
    cache = default_cache()
    try:
        if "--write" in arguments:
            _fetch(cache, cache / "jars")
            lines = (f"{digest}  {name}\n" for name, digest in found(cache / "jars").items())
            CHECKSUMS.write_text("".join(lines))
        fetched(cache)
    except WrongJars as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
