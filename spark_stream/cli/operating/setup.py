"""``isolog config example``: example configurations. ``isolog prepare-spark``: bytecode.

Spark starts a worker for every plan of a query. The zip files of PySpark contain sources only, so
each worker compiles them again. This takes more than a second of processor time and, on a busy
machine, more than the ten seconds that Spark waits for a worker. Another version of Python ignores
the bytecode and uses the sources.
"""

from __future__ import annotations

import os
import py_compile
import re
import tempfile
import warnings
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final

import typer

from spark_stream.cli.options import counted, note
from spark_stream.errors import InvalidOption, StorageFailure
from spark_stream.extras import install_hint

FOLDER: Final = Path(__file__).resolve().parents[2] / "conf"
"""A link to ``conf/`` in a checkout, a folder with the same files in an installed package."""

app = typer.Typer(no_args_is_help=True, help="Print or copy example configurations.")


@app.callback()
def _config() -> None:
    """Print or copy example configurations."""  # a callback keeps `example` a command


def _completed(incomplete: str) -> list[str]:
    return [each for each in names() if each.startswith(incomplete)]


@app.command()
def example(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="A file, or with --write also a folder. Default: all files.",
            show_default=False,
            autocompletion=_completed,
        ),
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write the files to this directory.", show_default=False),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
) -> None:
    """List example configurations, print one of them, or copy some to a directory.

    There are examples for brokers on one host, secure brokers, systemd, Kubernetes, and Spark.

    \b
    isolog config example
    isolog config example broker.toml > broker.toml
    isolog config example kubernetes --write deploy/
    """
    if force and write is None:
        raise InvalidOption("--force needs --write", hint="Give --write DIR, or leave out --force.")
    if write is None and name is None:
        width = max(map(len, names()))
        for each in names():
            print(f"{each:{width}}  {_title(each)}")
        return
    if write is None:
        (only,) = _named(name, of_folders=False)
        print((FOLDER / only).read_text(), end="")
        return
    written = _write(_named(name, of_folders=True), write, force=force)
    for path in written:
        note(f"wrote {path}")


def names() -> list[str]:
    """Return the names of the files. Files in folders come last."""
    found = [path.relative_to(FOLDER) for path in FOLDER.rglob("*") if path.is_file()]
    return [str(each) for each in sorted(found, key=lambda each: (len(each.parts), each))]


def _named(name: str | None, *, of_folders: bool) -> list[str]:
    """Return the file of this name, or the files of a folder. Raise InvalidOption for neither."""
    from spark_stream.schema.schemas import meant

    if name is None:
        return names()
    wanted = name.rstrip("/")
    found = [each for each in names() if each == wanted or each.startswith(f"{wanted}/")]
    if not found:
        raise InvalidOption(
            f"there is no example {name!r}{meant(wanted, names())}",
            hint="List the examples: `isolog config example`.",
        )
    if found != [wanted] and not of_folders:
        raise InvalidOption(
            f"{name!r} is a folder: {', '.join(found)}", hint="Name a file, or give --write DIR."
        )
    return found


def _title(name: str) -> str:
    """Return the first sentence of the file's comment, up to a colon or a semicolon."""
    if name.endswith(".json"):
        return "A dashboard for Grafana"
    paragraph = re.split(r"\n#?\n", (FOLDER / name).read_text())[0]
    comment = " ".join(line.lstrip("# ") for line in paragraph.splitlines())
    return re.split(r"[.:;](?:\s|$)", comment)[0]


def _write(chosen: list[str], directory: Path, *, force: bool) -> list[Path]:
    """Write all files, or none if one exists already."""
    targets = [directory / each for each in chosen]
    existing = [path for path in targets if path.exists()]
    if existing and not force:
        raise InvalidOption(f"{existing[0]} exists already", hint="Give --force to replace it.")
    for name, path in zip(chosen, targets, strict=True):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes((FOLDER / name).read_bytes())
        except OSError as error:
            raise StorageFailure(
                f"{path}: {error.strerror}", hint="Give a writable directory."
            ) from None
    return targets


def prepare_spark() -> None:
    """Reduce the start time of Spark's Python workers. Run it once per installation of PySpark.

    The command compiles the modules that workers import, in the environment of the command.

    \b
    isolog prepare-spark
    """
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise InvalidOption(
            "PySpark is not installed in this environment",
            hint=install_hint("spark"),
        )
    folder = Path(found.origin).parent
    try:
        count = sum(compile_into(each) for each in sorted(folder.glob("python/lib/*.zip")))
    except OSError as error:
        raise StorageFailure(
            f"{folder}: {error}", hint="Run the command as the owner of the environment."
        ) from None
    note(f"{counted(count, 'module')} compiled" if count else "all modules are already compiled")


def compile_into(archive: Path) -> int:
    """Add bytecode to the archive. Return the number of modules, 0 if it has bytecode already."""
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
    """Compile a module without a check of its source. Tracebacks show the path ``shown``."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(action="ignore"):
        file, compiled = Path(folder, "module.py"), Path(folder, "module.pyc")
        file.write_bytes(source)
        unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(
            str(file), str(compiled), shown, doraise=True, invalidation_mode=unchecked
        )
        return compiled.read_bytes()
