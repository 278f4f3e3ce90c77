"""Kafka's schemas of requests and responses, from the package kafka-python.

The package has the files of Apache Kafka. Its own classes are not imported: they follow lengths in
a request without a check.

Source: https://github.com/apache/kafka, clients/src/main/resources/common/message/README.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from struct import Struct as Packed
from typing import Any, Final

from msgspec import Struct

from spark_stream.errors import Unsupported
from spark_stream.extras import install_hint

_COMMENT: Final = re.compile(r"^\s*//.*$", re.MULTILINE)
_WORDS: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_FOREVER: Final = 1 << 15
FIXED: Final = {
    "bool": Packed(">?"),
    "int8": Packed(">b"),
    "int16": Packed(">h"),
    "uint16": Packed(">H"),
    "int32": Packed(">i"),
    "uint32": Packed(">I"),
    "int64": Packed(">q"),
    "float64": Packed(">d"),
}
"""The types of a fixed size, by their names."""

Default = bool | int | float | str | bytes | None


class Versions(Struct, frozen=True):
    """A range of versions of a message. The default has none."""

    first: int = 0
    last: int = -1

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last


class Field(Struct, frozen=True):
    """A field of a message.

    ``kind``: the name of its type, ``struct`` for one with ``fields``. ``is_array``: it has any
    number of values of this type. ``tag``: its number among the tagged fields, in ``tagged``.
    """

    name: str
    kind: str
    versions: Versions
    is_array: bool
    nullable: Versions
    default: Default
    fields: tuple[Field, ...] = ()
    tag: int = -1
    tagged: Versions = Versions()


class Schema(Struct, frozen=True, eq=False):
    """The schema of a request, or of a response.

    Schemas are compared by identity: the hash of all fields would cost more than a small message.
    """

    name: str
    api_key: int
    versions: Versions
    flexible: Versions
    fields: tuple[Field, ...]


@cache
def load_schema(name: str) -> Schema:
    """Return the schema of a message, such as ``FetchRequest``.

    Raises:
        Unsupported: The package kafka-python is missing.
    """
    given = json.loads(_COMMENT.sub("", (_folder() / f"{name}.json").read_text()))
    structs = {each["name"]: each["fields"] for each in given.get("commonStructs", ())}
    return Schema(
        name,
        given.get("apiKey", -1),
        _versions(given["validVersions"]),
        _versions(given["flexibleVersions"]),
        _fields(given["fields"], structs),
    )


def runs_of(fields: Iterable[Field]) -> list[tuple[Packed | None, tuple[Field, ...]]]:
    """Return the fields in runs. Fields of fixed sizes that follow each other are a run.

    One call reads or writes such a run by its layout. Any other field is a run without a layout.
    """
    found: list[tuple[Packed | None, tuple[Field, ...]]] = []
    for is_fixed, group in groupby(fields, _is_fixed):
        run = tuple(group)
        if is_fixed:
            codes = (FIXED[field.kind].format.removeprefix(">") for field in run)
            found.append((Packed(">" + "".join(codes)), run))
        else:
            found += [(None, (field,)) for field in run]
    return found


def _is_fixed(field: Field) -> bool:
    return field.kind in FIXED and not field.is_array


@cache
def request_names() -> dict[int, str]:
    """Return the name of each request by its key, such as ``Fetch``."""
    found = {}
    for path in _folder().glob("*Request.json"):
        schema = load_schema(path.stem)
        found[schema.api_key] = schema.name.removesuffix("Request")
    return found


@cache
def _folder() -> Path:
    found = find_spec("kafka")
    if found is None or not found.submodule_search_locations:
        raise Unsupported(
            "the Kafka gateway needs the package kafka-python", hint=install_hint("kafka")
        )
    return Path(found.submodule_search_locations[0], "protocol", "schemas", "resources")


def _versions(text: str | None) -> Versions:
    if not text or text == "none":
        return Versions()
    first, _, last = text.partition("-")
    if first.endswith("+"):
        return Versions(int(first[:-1]), _FOREVER)
    return Versions(int(first), int(last or first))


def _fields(given: Sequence[Mapping[str, Any]], structs: Mapping[str, Any]) -> tuple[Field, ...]:
    return tuple(_field(each, structs) for each in given)


def _field(given: Mapping[str, Any], structs: Mapping[str, Any]) -> Field:
    kind = given["type"].removeprefix("[]")
    inner = given.get("fields") or structs.get(kind) or ()
    is_array = given["type"].startswith("[]")
    nullable = _versions(given.get("nullableVersions"))
    return Field(
        name=_WORDS.sub("_", given["name"]).lower(),
        kind="struct" if inner else kind,
        versions=_versions(given["versions"]),
        is_array=is_array,
        nullable=nullable,
        default=None if is_array else _default(kind, given.get("default"), bool(inner)),
        fields=_fields(inner, structs),
        tag=given.get("tag", -1),
        tagged=_versions(given.get("taggedVersions")),
    )


def _default(kind: str, given: Any, is_struct: bool) -> Default:
    if given == "null" or is_struct:
        return None
    match kind:
        case "bool":
            return str(given).lower() == "true"
        case "float64":
            return float(given or 0)
        case _ if kind in FIXED:
            return int(str(given or 0), 0)
        case "uuid":
            return bytes(16)
        case "string":
            return str(given or "")
        case _:
            return b""
