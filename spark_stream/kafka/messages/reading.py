"""The bytes of a message as plain values, by its schema.

Every length and count is checked against the bytes that are left, so a message cannot take more
memory than its limits.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from spark_stream.kafka.messages.schemas import FIXED, Field, Schema, runs_of
from spark_stream.kafka.refusals import MalformedRequest

VALUES_MAX: Final = 200_000
"""The most values in all arrays of a message."""

Read = Callable[["MessageReader"], Any]
"""A function that reads one value."""

_UUID_BYTES: Final = 16
_UVARINT_BYTES: Final = 5


def read_message(schema: Schema, version: int, data: memoryview) -> dict[str, Any]:
    """Return the fields of a message. Fields that the version lacks have their defaults.

    Bytes after the message are ignored, as Kafka does: librdkafka sends one in some requests.

    Raises:
        MalformedRequest: The bytes do not follow the schema.
    """
    found: dict[str, Any] = _reader_of(schema, version)(MessageReader(data))
    return found


class MessageReader:
    """The bytes of a message, from which values are read in order."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0
        self._values = 0

    @property
    def left(self) -> int:
        """The number of bytes that are left."""
        return len(self._data) - self._at

    def take(self, size: int) -> memoryview:
        """Return the next bytes. Raise MalformedRequest if there are too few."""
        begin, self._at = self._at, self._at + size
        if not begin <= self._at <= len(self._data):
            left = len(self._data) - begin
            raise MalformedRequest(f"a value has {size} bytes, and {left} are left")
        return self._data[begin : self._at]

    def numbers(self, packed: struct.Struct) -> tuple[Any, ...]:
        """Return numbers that follow each other. Raise MalformedRequest if there are too few."""
        return packed.unpack(self.take(packed.size))

    def number(self, packed: struct.Struct) -> Any:
        """Return one number. Raise MalformedRequest if the message has ended."""
        return self.numbers(packed)[0]

    def uvarint(self) -> int:
        """Return an unsigned number of up to 32 bits in groups of seven.

        Raises:
            MalformedRequest: It has more than five bytes, or the message ends within it.
        """
        value = shift = 0
        for byte in self._data[self._at : self._at + _UVARINT_BYTES]:
            self._at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
        raise MalformedRequest("a number is longer than 5 bytes, or ends with the message")

    def count(self, size: int) -> int:
        """Check the number of values of an array, and return it."""
        self._values += size
        if not 0 <= size <= len(self._data) - self._at or self._values > VALUES_MAX:
            raise MalformedRequest(f"an array has {size} values, and {self.left} bytes are left")
        return size


@cache
def _reader_of(schema: Schema, version: int) -> Read:
    return _struct_reader(schema.fields, version, version in schema.flexible)


def _struct_reader(fields: tuple[Field, ...], version: int, flexible: bool) -> Read:
    defaults: dict[str, Any] = {each.name: [] if each.is_array else each.default for each in fields}
    present = [each for each in fields if version in each.versions]
    tagged = {
        each.tag: (each.name, _field_reader(each, version, flexible))
        for each in present
        if version in each.tagged
    }
    plain: list[tuple[list[str], struct.Struct | Read]] = [
        ([each.name for each in run], packed or _field_reader(run[0], version, flexible))
        for packed, run in runs_of(each for each in present if version not in each.tagged)
    ]

    def read(reader: MessageReader) -> dict[str, Any]:
        found = defaults.copy()
        for names, form in plain:
            if isinstance(form, struct.Struct):
                found.update(zip(names, reader.numbers(form), strict=True))
            else:
                found[names[0]] = form(reader)
        if flexible and (tags := reader.uvarint()):
            for _ in range(reader.count(tags)):
                tag, size = reader.uvarint(), reader.uvarint()
                inner = MessageReader(reader.take(size))
                if tag in tagged:
                    name, read_value = tagged[tag]
                    found[name] = read_value(inner)
        return found

    return read


def _field_reader(field: Field, version: int, flexible: bool) -> Read:
    nullable = version in field.nullable
    if not field.is_array:
        return _value_reader(field, version, flexible, nullable)
    read_value = _value_reader(field, version, flexible, nullable=False)

    def read(reader: MessageReader) -> list[Any] | None:
        size = reader.uvarint() - 1 if flexible else reader.number(FIXED["int32"])
        if size == -1 and nullable:
            return None
        return [read_value(reader) for _ in range(reader.count(size))]

    return read


def _value_reader(field: Field, version: int, flexible: bool, nullable: bool) -> Read:
    match field.kind:
        case "struct":
            read_struct = _struct_reader(field.fields, version, flexible)
            if not nullable:
                return read_struct
            return lambda reader: (
                None if reader.number(FIXED["int8"]) == -1 else read_struct(reader)
            )
        case "uuid":
            return lambda reader: bytes(reader.take(_UUID_BYTES))
        case "string":
            return _sized_reader(FIXED["int16"], flexible, nullable, _text)
        case "bytes":
            return _sized_reader(FIXED["int32"], flexible, nullable, bytes)
        case "records":
            return _sized_reader(FIXED["int32"], flexible, nullable, lambda found: found)
        case _:
            kind = FIXED[field.kind]
            return lambda reader: reader.number(kind)


def _text(found: memoryview) -> str:
    try:
        return str(found, "utf-8")
    except UnicodeDecodeError:
        raise MalformedRequest("a text is not UTF-8") from None


def _sized_reader(
    length: struct.Struct, flexible: bool, nullable: bool, convert: Callable[[memoryview], Any]
) -> Read:
    def read(reader: MessageReader) -> Any:
        size = reader.uvarint() - 1 if flexible else reader.number(length)
        return None if size == -1 and nullable else convert(reader.take(size))

    return read
