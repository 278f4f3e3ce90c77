"""Puts bytecode into the zip file from which Spark's Python workers import pyspark.

Spark starts a worker for every plan of a query, and the zip file that comes with the package has
sources only: each worker compiles them again, which takes more than a second of processor time and,
on a busy machine, more than the ten seconds that Spark waits for a worker. A Python of another
version finds bytecode that is not its own there, and takes the sources as before.

``python scripts/compile_pyspark.py``: for the environment whose Python runs it. Run again, it does
nothing.
"""

from __future__ import annotations

import os
import py_compile
import sys
import tempfile
import warnings
import zipfile
from importlib.util import find_spec
from pathlib import Path


def compile_into(archive: Path) -> int:
    """Add the bytecode of the archive's modules, and return their number."""
    with zipfile.ZipFile(archive) as source:
        contents = {name: source.read(name) for name in source.namelist()}
    if any(name.endswith(".pyc") for name in contents):
        return 0
    modules = [name for name in contents if name.endswith(".py") and "/tests/" not in name]
    fresh = archive.with_name(archive.name + ".new")
    with zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED) as target:
        for name, data in contents.items():
            target.writestr(name, data)
        for name in modules:
            target.writestr(name + "c", bytecode(contents[name], f"{archive}/{name}"))
    os.replace(fresh, archive)
    return len(modules)


def bytecode(source: bytes, shown: str) -> bytes:
    """Compile a module; Python does not compare it with its source. Traces name ``shown``."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(action="ignore"):
        file, compiled = Path(folder, "module.py"), Path(folder, "module.pyc")
        file.write_bytes(source)
        unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(
            str(file), str(compiled), shown, doraise=True, invalidation_mode=unchecked
        )
        return compiled.read_bytes()


def main() -> int:
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        print("pyspark is not installed", file=sys.stderr)
        return 1
    for archive in sorted(Path(found.origin).parent.glob("python/lib/*.zip")):
        compile_into(archive)
    return 0


if __name__ == "__main__":
    sys.exit(main())
