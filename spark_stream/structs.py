"""Base classes of values that are sent or stored: frozen ``msgspec`` structs with common settings.

A struct's annotations are its schema: decoding checks types and the constraints of
``Annotated[..., Meta(...)]``. Making one in code checks nothing: mypy does that.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, dataclass_transform

import msgspec
from msgspec import Meta

INT64_MAX: Final = (1 << 63) - 1
OffsetField = Annotated[int, Meta(ge=0, le=INT64_MAX)]
PartitionField = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
Name = Annotated[str, Meta(min_length=1, max_length=255)]
"""Any text of 1 to 255 characters. The names of topics have more limits (``cluster.topics``)."""


class StructType(msgspec.StructMeta):
    """The metaclass that makes structs frozen, with keyword-only fields, by default."""

    keywords_only = True

    def __new__(
        mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **config: Any
    ) -> StructType:
        config = {"frozen": True, "kw_only": mcls.keywords_only} | config
        return super().__new__(mcls, name, bases, namespace, **config)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Struct(
    msgspec.Struct,
    metaclass=StructType,
    frozen=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """The base class: encoding leaves out default values, and decoding refuses unknown fields."""


class PositionalType(StructType):
    """The metaclass that makes structs frozen, with fields that may be positional, by default."""

    keywords_only = False


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Positional(Struct, metaclass=PositionalType, frozen=True):
    """The base class of structs whose fields may be positional."""


def learn_types(kind: Any) -> None:
    """Make msgspec analyse a class and the types of its fields. Call it at import.

    ``msgspec.convert`` does so at its first use of a class, and a second thread that uses the class
    at the same time crashes the process.
    """
    msgspec.json.Decoder(kind)
