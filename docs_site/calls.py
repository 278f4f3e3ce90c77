"""The calls of the protocol and their messages, from the classes."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from types import NoneType
from typing import Any, Final

import msgspec
from msgspec import NODEFAULT, structs

from docs_site.cells import row, table
from spark_stream.wire.calls import CALLS

_ATTRIBUTE: Final = re.compile(r"^ {4}(\w+): ", re.MULTILINE)
_ROLE: Final = re.compile(r":\w+:`[~.\w]*?(\w+)`")


def rendered() -> str:
    """Render every call: its fields, the message that answers it, and its docstring."""
    rows = [
        row(
            f"`{name}`",
            _fields(call),
            "nothing" if call.answer is NoneType else f"`{call.answer.__name__}`",
            _meaning(call),
        )
        for name, call in CALLS.items()
    ]
    return table("action", "body", "result", "meaning", rows=rows)


def rendered_messages() -> str:
    """Render the messages that are in calls and in answers, by name."""
    found: dict[str, type] = {}
    for call in CALLS.values():
        found |= {each.__name__: each for each in _within(call) if each is not call}
        found |= {each.__name__: each for each in _within(call.answer)}
    rows = [row(f"`{name}`", _fields(kind), _meaning(kind)) for name, kind in sorted(found.items())]
    return table("message", "fields", "meaning", rows=rows)


def _within(kind: type) -> Iterator[type]:
    """Return a message and those in it."""
    return _structs(msgspec.inspect.type_info(kind), set())


def _structs(found: Any, seen: set[type]) -> Iterator[type]:
    if isinstance(found, msgspec.inspect.StructType):
        if found.cls in seen:
            return
        seen.add(found.cls)
        yield found.cls
        parts = [each.type for each in found.fields]
    else:
        parts = [
            part
            for name in ("item_type", "item_types", "types", "key_type", "value_type")
            for value in (getattr(found, name, ()),)
            for part in (value if isinstance(value, tuple) else (value,))
        ]
    for part in parts:
        yield from _structs(part, seen)


def _fields(kind: Any) -> str:
    """Return the fields of a message, each with its default and the message that it holds."""
    info: Any = msgspec.inspect.type_info(kind)
    types = {each.name: each.type for each in info.fields}
    return ", ".join(
        f"`{each.encode_name}`{_notes(each, types[each.name])}" for each in structs.fields(kind)
    )


def _notes(field: structs.FieldInfo, kind: Any) -> str:
    inner = next((each.__name__ for each in _structs(kind, set())), None)
    notes = [] if inner is None else [f"`{inner}`"]
    notes += [" | ".join(f"`{each}`" for each in found)] if (found := _values(kind)) else []
    default = field.default
    if field.default_factory is not NODEFAULT:
        default = field.default_factory()
    if default is not NODEFAULT:
        notes.append("optional" if default is None else json.dumps(msgspec.to_builtins(default)))
    return f" ({', '.join(notes)})" if notes else ""


def _values(kind: Any) -> list[str]:
    """Return the values that a field can have, if they are few texts."""
    if isinstance(kind, msgspec.inspect.EnumType):
        return [str(each.value) for each in kind.cls if each.value]
    if isinstance(kind, msgspec.inspect.LiteralType):
        return list(map(str, kind.values))
    return [value for part in getattr(kind, "types", ()) for value in _values(part)]


def _meaning(kind: type) -> str:
    """Return the docstring, with those of inherited fields, on one line of Markdown."""
    shared = [each for each in kind.__bases__ if getattr(each, "__struct_fields__", ())]
    docs = "\n".join(inspect.cleandoc(each.__doc__ or "") for each in (kind, *shared))
    docs = _ATTRIBUTE.sub(r"``\1``: ", docs.replace("\nAttributes:\n", "\n"))
    return " ".join(_ROLE.sub(r"`\1`", docs).replace("``", "`").split())
