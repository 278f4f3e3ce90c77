"""Plain values as the bytes of a message, by its schema: the reverse of ``reading``."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

from spark_stream.kafka.messages.schemas import FIXED, Field, Schema, runs_of

Write = Callable[["MessageWriter", Any], None]
"""A function that writes one value."""

_JOINED_MAX: Final = 1 << 14
"""The most bytes of records that are copied into the message."""


def write_message(schema: Schema, version: int, values: Mapping[str, Any]) -> list[bytes]:
    """Return the parts of a message. Fields without a value have their defaults.

    Raises:
        KeyError: The schema has no field of this name, in any version.
    """
    writer = MessageWriter()
    _writer_of(schema, version)(writer, values)
    return writer.parts()


class MessageWriter:
    """A message in parts. Large records are a separate part, and are not copied."""

    def __init__(self) -> None:
        self.last = bytearray()
        self._before: list[bytes] = []

    def parts(self) -> list[bytes]:
        """Return all parts."""
        return [*self._before, bytes(self.last)]

    def append_records(self, data: bytes) -> None:
        """Append record batches."""
        if len(data) <= _JOINED_MAX:
            self.last += data
            return
        self._before += [bytes(self.last), data]
        self.last.clear()

    def uvarint(self, value: int) -> None:
        """Append an unsigned number in groups of seven bits."""
        while value >= 128:
            self.last.append(value & 127 | 128)
            value >>= 7
        self.last.append(value)


@cache
def _writer_of(schema: Schema, version: int) -> Write:
    return _struct_writer(schema.fields, version, version in schema.flexible)


def _struct_writer(fields: tuple[Field, ...], version: int, flexible: bool) -> Write:
    known = {each.name for each in fields}
    present = [each for each in fields if version in each.versions]
    tagged = [
        (each, _field_writer(each, version, flexible)) for each in present if version in each.tagged
    ]
    plain: list[tuple[list[str], list[Any], struct.Struct | Write]] = [
        (
            [each.name for each in run],
            [[] if each.is_array else each.default for each in run],
            packed or _field_writer(run[0], version, flexible),
        )
        for packed, run in runs_of(each for each in present if version not in each.tagged)
    ]

    def write(writer: MessageWriter, values: Mapping[str, Any]) -> None:
        if not values.keys() <= known:
            raise KeyError(f"no field {sorted(values.keys() - known)} in {sorted(known)}")
        for names, defaults, form in plain:
            if isinstance(form, struct.Struct):
                writer.last += form.pack(*map(values.get, names, defaults))
            else:
                form(writer, values.get(names[0], defaults[0]))
        if not flexible:
            return
        given = [
            each for each in tagged if values.get(each[0].name, each[0].default) != each[0].default
        ]
        writer.uvarint(len(given))
        for field, write_value in given:
            inner = MessageWriter()
            write_value(inner, values[field.name])
            data = b"".join(inner.parts())
            writer.uvarint(field.tag)
            writer.uvarint(len(data))
            writer.last += data

    return write


def _field_writer(field: Field, version: int, flexible: bool) -> Write:
    nullable = version in field.nullable
    if not field.is_array:
        return _value_writer(field, version, flexible, nullable)
    write_value = _value_writer(field, version, flexible, nullable=False)

    def write(writer: MessageWriter, values: Any) -> None:
        size = -1 if values is None else len(values)
        if flexible:
            writer.uvarint(size + 1)
        else:
            writer.last += FIXED["int32"].pack(size)
        for each in values or ():
            write_value(writer, each)

    return write


def _value_writer(field: Field, version: int, flexible: bool, nullable: bool) -> Write:
    def write_uuid(writer: MessageWriter, value: Any) -> None:
        writer.last += value

    match field.kind:
        case "struct":
            write_struct = _struct_writer(field.fields, version, flexible)
            return _nullable_writer(write_struct) if nullable else write_struct
        case "uuid":
            return write_uuid
        case "string":
            return _sized_writer(FIXED["int16"], flexible, is_records=False)
        case "bytes" | "records":
            is_records = field.kind == "records"
            return _sized_writer(FIXED["int32"], flexible, is_records=is_records)
        case _:
            return _number_writer(FIXED[field.kind])


def _number_writer(kind: struct.Struct) -> Write:
    def write(writer: MessageWriter, value: Any) -> None:
        writer.last += kind.pack(value)

    return write


def _nullable_writer(write_struct: Write) -> Write:
    def write(writer: MessageWriter, value: Any) -> None:
        writer.last += FIXED["int8"].pack(-1 if value is None else 1)
        if value is not None:
            write_struct(writer, value)

    return write


def _sized_writer(length: struct.Struct, flexible: bool, *, is_records: bool) -> Write:
    def write(writer: MessageWriter, value: Any) -> None:
        data = value.encode() if isinstance(value, str) else value
        size = -1 if data is None else len(data)
        if flexible:
            writer.uvarint(size + 1)
        else:
            writer.last += length.pack(size)
        if data is not None and is_records:
            writer.append_records(data)
        elif data is not None:
            writer.last += data

    return write
