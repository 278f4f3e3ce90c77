"""The base of all control messages, and of the remote calls.

Each message is a JSON object with a fixed set of fields. A field that has its default is left out.
No message is ever unpickled. Tagged messages have their kind in the field ``kind``.

A :class:`Call` is a request that a client sends and a broker answers. Its class is all that both
need: the fields, the answer, the name on the wire, and the permissions of its callers.

Where the messages travel:

=================  ====================================================================
``Fetch``          the first message of a fetch
``FetchAnswer``    the header of each batch of the answer
``AppendTo``       the first message of a stream of appends
``Envelope``       the header of each batch of the stream
``Ack``            the answer to each batch
calls              requests by name, and their answers
=================  ====================================================================
"""

from __future__ import annotations

import json
import re
import threading
from types import NoneType
from typing import Annotated, Any, ClassVar, Final, Generic, Self, TypeVar, get_args, get_origin

import msgspec
import pyarrow as pa
from msgspec import Meta, structs

from spark_stream.access.rules import Needs
from spark_stream.errors import InvalidRequest, IsologError, from_wire
from spark_stream.operating_system import call_in_child
from spark_stream.schema.schemas import schema_from_text, schema_to_text
from spark_stream.structs import OffsetField, Struct, StructType
from spark_stream.wire.limits import CONTROL_BYTES_MAX, TRANSACTION_TIMEOUT_MS_MAX

# The methods of the streams, as OPEN names them. A broker serves each method at one of its two
# doors: that of clients, or that of the other brokers (docs/protocol.md).
AUTHENTICATE: Final = "authenticate"
ACT: Final = "act"
RUN_STEPS: Final = "run-steps"
APPEND: Final = "append"
FETCH: Final = "fetch"
REPLICATE: Final = "replicate"

CLIENT_METHODS: Final = frozenset({AUTHENTICATE, ACT, APPEND, FETCH})
PEER_METHODS: Final = frozenset({RUN_STEPS, REPLICATE})

LineageField = tuple[tuple[OffsetField, OffsetField], ...]
TransactionalId = Annotated[str, Meta(min_length=1, max_length=255)]
TimeoutField = Annotated[int, Meta(ge=1, le=TRANSACTION_TIMEOUT_MS_MAX)]

EARLIEST: Final = -2
LATEST: Final = -1


_PLACE: Final = re.compile(r" - at (?:`key` in )?`\$\.?(?P<path>.*)`$", re.DOTALL)
_FIELD: Final = re.compile(r"Object (?:contains unknown|missing required) field `(?P<name>.*?)`")


class Message(Struct):
    """A message: immutable, without unknown fields and silent conversions."""

    HINTS: ClassVar[frozenset[str]] = frozenset()
    """Fields that a request can lack at a broker of an earlier release."""

    def without_hint(self, error: IsologError) -> Self | None:
        """Return the request for a broker that does not have one of the hints.

        ``error`` is the broker's answer. The result is None if the error has another reason.
        """
        name = error.details.get("field")
        if name not in self.HINTS or "unknown field" not in error.message:
            return None
        default = next(each.default for each in structs.fields(self) if each.name == name)
        return None if getattr(self, name) == default else structs.replace(self, **{name: default})

    def to_bytes(self) -> bytes:
        """Return the JSON text, without fields that have their default."""
        return to_bytes(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return the message, or raise InvalidRequest naming the first field that is wrong."""
        found: Self = decoded(data, decoder(cls), cls.__name__)
        return found

    @classmethod
    def of(cls, **fields: Any) -> Self:
        """Make the message of values from a user. Raise InvalidRequest as :meth:`from_bytes`."""
        decoder(cls)  # prepares the types under the lock, before convert does
        try:
            return msgspec.convert(fields, cls)
        except (msgspec.ValidationError, OverflowError) as error:
            raise _refused(cls.__name__, error) from None


class Description(Message, kw_only=False, omit_defaults=False, forbid_unknown_fields=False):
    """A message that users get unchanged: all of its fields are sent, also those with defaults.

    A later broker may send fields that an earlier client ignores.
    """


_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}
_decoders_lock = threading.RLock()
call_in_child(_decoders_lock._at_fork_reinit)  # type: ignore[attr-defined]


def decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """Return the decoder of messages of a kind, which may be a tagged union.

    msgspec prepares the types of a struct's fields when it first decodes one, and a second thread
    that decodes the struct during that time crashes the process. So only one thread at a time makes
    a decoder.
    """
    found = _decoders.get(kind)
    if found is None:
        with _decoders_lock:
            found = _decoders[kind] = msgspec.json.Decoder(kind, dec_hook=from_plain)
    return found


def decoded(data: bytes, by: Any, name: str) -> Any:
    """Decode a message. ``name`` is for the error.

    Raises:
        InvalidRequest: The message is invalid. The error names the first invalid field.
    """
    size = memoryview(data).nbytes
    if size > CONTROL_BYTES_MAX:
        raise InvalidRequest(f"a {name} has at most {CONTROL_BYTES_MAX} bytes, not {size}")
    try:
        return by.decode(data if size else b"{}")
    except (ValueError, RecursionError) as error:
        raise _refused(name, error) from None


def _refused(name: str, error: Exception) -> InvalidRequest:
    text = str(error)
    place, field = _PLACE.search(text), _FIELD.search(text)
    parts = [each for each in (place and place["path"], field and field["name"]) if each]
    where = ".".join(parts) or "the message"
    what = text if place is None else text[: place.start()]
    return InvalidRequest(f"{name}: {where}: {what}", field=where)


def to_plain(value: Any) -> Any:
    """Return the JSON value of a schema or an error: an encoder's hook."""
    if isinstance(value, IsologError):
        return value.to_wire()
    if isinstance(value, pa.Schema):
        return schema_to_text(value)
    raise NotImplementedError(f"{type(value).__name__} cannot be sent")


def from_plain(kind: type, value: Any) -> Any:
    """Return the schema or error of the JSON value of :func:`to_plain`: a decoder's hook."""
    if kind is IsologError:
        try:
            return from_wire(value)
        except (AttributeError, TypeError):
            raise ValueError("Expected the object of an error") from None
    if kind is pa.Schema:
        try:
            return schema_from_text(value)
        except InvalidRequest as error:
            raise ValueError(error.message) from None
    raise NotImplementedError(f"{kind.__name__} cannot be sent")


_ENCODER: Final = msgspec.json.Encoder(enc_hook=to_plain)


def to_bytes(value: msgspec.Struct | None) -> bytes:
    """Return the JSON text of a message or an answer. For None it is an empty object."""
    return b"{}" if value is None else _ENCODER.encode(value)


# -- calls -----------------------------------------------------------------------------------------

A = TypeVar("A", bound=Struct | None)


class CallType(StructType):
    """The type of the classes of calls."""

    def __new__(
        mcls,
        class_name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        /,
        *,
        name: str = "",
        needs: Needs | None = None,
        once: bool = False,
        **config: Any,
    ) -> Any:
        """Make the class of a call.

        Raises:
            TypeError: The class has no ``name``, no ``needs``, or no type of its answer.
        """
        if not any(isinstance(base, CallType) for base in bases):
            return super().__new__(mcls, class_name, bases, namespace, **config)  # Call itself
        generic = namespace.get("__orig_bases__", ())
        answers = [get_args(each) for each in generic if isinstance(get_origin(each), CallType)]
        if not name or needs is None or not answers:
            raise TypeError(
                f"{class_name}: a call has a name, needs and an answer:"
                f' class {class_name}(Call[Answer], name="…", needs=…)'
            )
        kind: Any = super().__new__(mcls, class_name, bases, namespace, **config)
        kind.wire_name, kind.needs, kind.once = name, needs, once
        ((kind.answer,),) = answers
        return kind


class Call(Message, Generic[A], metaclass=CallType):
    """A request to a broker, which sends an ``A`` back, or an empty answer if that is None.

    ``name`` is the call's name on the wire. ``needs``: the permissions of its callers. ``once``: a
    second broker that gets the call while the first still carries it out may answer with an error.
    """

    wire_name: ClassVar[str]
    answer: ClassVar[type[Any]]
    needs: ClassVar[Needs]
    once: ClassVar[bool]

    @classmethod
    def signature(cls) -> str:
        """Return the names of the request and of its answer, for people."""
        answer = "nothing" if cls.answer is NoneType else cls.answer.__name__
        return f"{cls.__name__} → {answer}"

    @classmethod
    def answer_from(cls, data: bytes) -> A:
        """Return the answer in these bytes. The errors are those of :meth:`from_bytes`."""
        nothing: Any = None
        found: A = nothing
        if cls.answer is not NoneType:
            found = decoded(data, decoder(cls.answer), cls.answer.__name__)
        return found


def json_bytes(value: object) -> bytes:
    """Return compact JSON."""
    return json.dumps(value, separators=(",", ":")).encode()
