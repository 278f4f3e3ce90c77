"""``isolog prepare-spark``: put bytecode where Spark's Python workers import pyspark from.

Spark starts a worker for every plan of a query, and the zip files that come with the package have
sources only: each worker compiles them again, which takes more than a second of processor time and,
on a busy machine, more than the ten seconds that Spark waits for a worker. A Python of another
version finds bytecode that is not its own there, and takes the sources as before.
"""

from __future__ import annotations

import os
import py_compile
import tempfile
import warnings
import zipfile
from importlib.util import find_spec
from pathlib import Path

from spark_stream.cli.options import counted, note
from spark_stream.errors import InvalidOption, StorageFailure


def prepare_spark() -> None:
    """Make Spark's Python workers start sooner; once for each installation of PySpark.

    It compiles the modules that workers import, in the environment of this command. Run again, it
    does nothing.

    \b
    isolog prepare-spark
    """
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise InvalidOption(
            "PySpark is not installed in this environment",
            hint="Install it: pip install 'isolog[spark]'.",
        )
    folder = Path(found.origin).parent
    try:
        count = sum(compile_into(each) for each in sorted(folder.glob("python/lib/*.zip")))
    except OSError as error:
        raise StorageFailure(
            f"{folder}: {error}", hint="Run the command as the owner of the environment."
        ) from None
    note(f"{counted(count, 'module')} compiled" if count else "all modules are compiled already")


def compile_into(archive: Path) -> int:
    """Add the bytecode of the archive's modules, and return their number; 0 if it has bytecode."""
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
