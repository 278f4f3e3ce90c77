"""What a leader and a follower say to each other on a stream of replication.

A stream carries all partitions that an ordered pair of brokers shares. The leader speaks on a
DoGet, the follower on a DoPut over the same connection
(``docs/decisions/0043-the-replication-stream.md`` says why it is not one DoExchange). The ticket of
the one and the command of the other is the same :class:`OpenReplication`, with a prefix that tells
it from every other call. What comes after that is packed: a byte that tells the kind, then the
fields, little-endian, in the ``app_metadata`` of a message.

======================  ===========  ===============================================================
:class:`Welcome`        leader       the first message: a proof of who it is
:class:`Follow`         follower     wants a partition, under a slot number of its own choice
:class:`Unfollow`       follower     wants no more of a slot, perhaps for a reason that it says
:class:`Acked`          follower     has appended, slot by slot, up to these entries
:class:`Room`           follower     how many bytes it takes before it has acknowledged them
:class:`Agreed`         leader       where a slot's entries will begin
:class:`Frame`          leader       entries of a slot: rows of the entries table, and their bytes
:class:`HighWatermarks` leader       slot by slot, where there was no frame to tell it
:class:`Refused`        leader       a slot has ended, and why
:class:`Beat`           both         the leader asks for a sign of life, the follower gives it
:class:`Bye`            leader       it is about to stop
======================  ===========  ===============================================================

A slot number stands for one session of one partition and is never given again on its stream. So
what is still on its way for a slot that has ended is known, and dropped.

The bytes of a frame are the one ``uint8`` column of its batch: they go from the mapped file to the
socket without a copy. All other messages have a batch without a row.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import starmap
from types import MappingProxyType
from typing import Any, ClassVar, Final, Self

import numpy as np
import pyarrow as pa

from spark_stream.consistency.entries import ENTRY, ENTRY_SIZE, Table
from spark_stream.consistency.epochs import EpochHistory
from spark_stream.errors import InvalidRequest, IsologError, from_wire
from spark_stream.wire.messages import Message

REPLICATION_VERSION: Final = 1
BODY: Final = pa.schema([pa.field("data", pa.uint8(), nullable=False)])
# Not by pa.array, which imports pandas if that is installed: half of a broker's memory.
NO_BODY: Final = pa.RecordBatch.from_arrays(
    [pa.Array.from_buffers(pa.uint8(), 0, [None, pa.py_buffer(b"")])], schema=BODY
)
_PREFIX: Final = b"isolog-replication:"

NO_OFFSET: Final = -1
NO_ENTRY: Final = -1
_SHORT: Final = struct.Struct("<H")
_SLOT: Final = struct.Struct("<i")
_BYTES: Final = struct.Struct("<q")
_PAIRS: Final = struct.Struct("<I")
_FOLLOW: Final = struct.Struct("<iiiqqI")
_UNFOLLOW: Final = struct.Struct("<iq?")
_AGREED: Final = struct.Struct("<iqqq")
_FRAME: Final = struct.Struct("<Biiqqi")
_PAIR: Final = struct.Struct("<iq")
_EPOCH: Final = np.dtype([("epoch", "<i4"), ("first", "<i8")])

Pairs = tuple[tuple[int, int], ...]
"""(slot, entry index), …"""


class OpenReplication(Message):
    """Opens both halves of a stream: who asks, with the proof that it is a broker of the cluster.

    ``stream``: an id that the follower made, which joins the two halves; the proof in the leader's
    :class:`Welcome` covers it. ``pid``: the follower's
    process; on a Unix socket it is what tells this connection from others.
    ``window_bytes``: as :class:`Room`.
    """

    stream: str
    version: int = REPLICATION_VERSION
    follower: str
    proof: str
    pid: int
    window_bytes: int

    def to_command(self) -> bytes:
        """A ticket, or the command of a descriptor."""
        return _PREFIX + self.to_bytes()

    @classmethod
    def from_command(cls, command: bytes) -> Self | None:
        """What :meth:`to_command` made; None: the command is of another kind."""
        found = command.startswith(_PREFIX)
        return cls.from_bytes(command.removeprefix(_PREFIX)) if found else None


@dataclass(frozen=True, slots=True)
class Welcome:
    """The leader takes the stream, and proves that it is the broker that was called."""

    kind: ClassVar[int] = 1
    version: int
    proof: str

    def pack(self) -> bytes:
        return _kind(self) + _SHORT.pack(self.version) + _texts(self.proof)

    @classmethod
    def unpack(cls, parts: Parts) -> Self:
        (version,) = parts.take(_SHORT)
        return cls(version, parts.text())


@dataclass(frozen=True, slots=True)
class Follow:
    """Start a session; ``history`` tells what the follower's log holds."""

    kind: ClassVar[int] = 2
    slot: int
    topic_id: str
    partition: int
    leader_epoch: int
    generation: str
    history: EpochHistory

    def pack(self) -> bytes:
        epochs = np.array(list(self.history.epochs), _EPOCH)
        numbers = (self.slot, self.partition, self.leader_epoch)
        fixed = _FOLLOW.pack(*numbers, self.history.start, self.history.end, len(epochs))
        return _kind(self) + fixed + _texts(self.topic_id, self.generation) + epochs.tobytes()

    @classmethod
    def unpack(cls, parts: Parts) -> Self:
        slot, partition, epoch, start, end, count = parts.take(_FOLLOW)
        topic_id, generation = parts.text(), parts.text()
        epochs = parts.array(_EPOCH, count).tolist()
        return cls(slot, topic_id, partition, epoch, generation, EpochHistory(start, end, epochs))


@dataclass(frozen=True, slots=True)
class Unfollow:
    """End a slot's session, and say why if its leader can do something about that.

    Attributes:
        slot: Whose session ends.
        damaged: The entry that arrived damaged; None if none did.
        refuses_writes: Whether the follower's log refuses writes.
    """

    kind: ClassVar[int] = 3
    slot: int
    damaged: int | None = None
    refuses_writes: bool = False

    def pack(self) -> bytes:
        damaged = NO_ENTRY if self.damaged is None else self.damaged
        return _kind(self) + _UNFOLLOW.pack(self.slot, damaged, self.refuses_writes)

    @classmethod
    def unpack(cls, parts: Parts) -> Self:
        slot, entry, refuses = parts.take(_UNFOLLOW)
        return cls(slot, None if entry == NO_ENTRY else entry, refuses)


@dataclass(frozen=True, slots=True)
class Acked:
    """The follower's log holds all entries of a slot before this one."""

    kind: ClassVar[int] = 4
    entries: Pairs

    def pack(self) -> bytes:
        return _kind(self) + _pairs(self.entries)

    @classmethod
    def unpack(cls, parts: Parts) -> Self:
        return cls(parts.pairs())


@dataclass(frozen=True, slots=True)
class Room:
    """At most so many bytes of frames may be on their way or unacknowledged; one frame always."""

    kind: ClassVar[int] = 5
    window_bytes: int

    def pack(self) -> bytes:
        return _kind(self) + _BYTES.pack(self.window_bytes)

    @classmethod
    def unpack(cls, parts: Parts) -> Self:
        return cls(*parts.take(_BYTES))


@dataclass(frozen=True, slots=True)
class Agreed:
    """A slot's first frame will begin at ``entry``.

    ``reset_offset`` None: both logs hold the same entries before it, and the follower cuts the rest
    of its log off. Else nothing is shared: the follower's log begins anew, at this entry and
    offset.
    """

    kind: ClassVar[int] = 6
    slot: int
    entry: int
    reset_offset: int | None
    high_watermark: int

    def pack(self) -> bytes:
        reset = NO_OFFSET if self.reset_offset is None else self.reset_offset
        return _kind(self) + _AGREED.pack(self.slot, self.entry, reset, self.high_watermark)

    @classmethod
    def unpack(cls, parts: Parts) -> Self:
        slot, entry, offset, high_watermark = parts.take(_AGREED)
        return cls(slot, entry, None if offset == NO_OFFSET else offset, high_watermark)


@dataclass(frozen=True, slots=True)
class HighWatermarks:
    """The high watermarks of slots, as entry indexes."""

    kind: ClassVar[int] = 7
    entries: Pairs

    def pack(self) -> bytes:
        return _kind(self) + _pairs(self.entries)

    @classmethod
    def unpack(cls, parts: Parts) -> Self:
        return cls(parts.pairs())


@dataclass(frozen=True, slots=True)
class Refused:
    """A slot's session has not begun, or has ended."""

    kind: ClassVar[int] = 8
    slot: int
    error: IsologError

    def pack(self) -> bytes:
        return _kind(self) + _SLOT.pack(self.slot) + json.dumps(self.error.to_wire()).encode()

    @classmethod
    def unpack(cls, parts: Parts) -> Self:
        (slot,) = parts.take(_SLOT)
        return cls(slot, from_wire(json.loads(parts.rest())))


@dataclass(frozen=True, slots=True)
class Beat:
    """A sign of life."""

    kind: ClassVar[int] = 9

    def pack(self) -> bytes:
        return _kind(self)

    @classmethod
    def unpack(cls, parts: Parts) -> Self:
        return cls()


@dataclass(frozen=True, slots=True)
class Bye:
    """The leader is about to stop."""

    kind: ClassVar[int] = 10

    def pack(self) -> bytes:
        return _kind(self)

    @classmethod
    def unpack(cls, parts: Parts) -> Self:
        return cls()


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """Consecutive entries of a slot.

    ``rows`` are the leader's rows of the entries table (their ``position`` means nothing to the
    follower), ``data`` the bytes of their batches, one behind the other.
    """

    kind: ClassVar[int] = 11
    slot: int
    leader_epoch: int
    first: int
    high_watermark: int
    rows: Table
    data: pa.Buffer

    @property
    def size(self) -> int:
        """What it takes of the window, in bytes."""
        return int(self.rows.nbytes + self.data.size)

    @property
    def end(self) -> int:
        """The index after its last entry."""
        return self.first + len(self.rows)

    def pack(self) -> tuple[bytes, pa.RecordBatch]:
        """The message's ``app_metadata``, and the batch that goes with it."""
        numbers = (self.slot, self.leader_epoch, self.first, self.high_watermark)
        fixed = _FRAME.pack(self.kind, *numbers, len(self.rows))
        column = pa.Array.from_buffers(pa.uint8(), self.data.size, [None, self.data])
        return fixed + self.rows.tobytes(), pa.RecordBatch.from_arrays([column], schema=BODY)

    @classmethod
    def unpack(cls, metadata: pa.Buffer, batch: pa.RecordBatch | None) -> Self:
        if metadata.size < _FRAME.size:
            raise _malformed("a frame that is too short")
        _, slot, epoch, first, high_watermark, count = _FRAME.unpack_from(metadata)
        edge = _FRAME.size + count * ENTRY_SIZE
        if count <= 0 or metadata.size < edge:
            raise _malformed("a frame without its rows")
        rows = np.frombuffer(metadata, ENTRY, count, _FRAME.size)
        return cls(slot, epoch, first, high_watermark, rows, _column(batch))


def _column(batch: pa.RecordBatch | None) -> pa.Buffer:
    if batch is None or batch.num_columns != 1 or batch.schema.field(0).type != pa.uint8():
        raise _malformed("a body that is no column of bytes")
    column = batch.column(0)
    return column.buffers()[1].slice(column.offset, len(column))


Said = (
    Welcome
    | Follow
    | Unfollow
    | Acked
    | Room
    | Agreed
    | HighWatermarks
    | Refused
    | Beat
    | Bye
    | Frame
)


class Parts:
    """A message's bytes, taken from the front."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def take(self, layout: struct.Struct) -> tuple[Any, ...]:
        found = layout.unpack_from(self._data, self._at)
        self._at += layout.size
        return found

    def array(self, kind: np.dtype[Any], count: int) -> np.ndarray:
        found = np.frombuffer(self._data, kind, count, self._at)
        self._at += found.nbytes
        return found

    def text(self) -> str:
        (size,) = self.take(_SHORT)
        found = bytes(self._data[self._at : self._at + size]).decode()
        self._at += size
        return found

    def rest(self) -> bytes:
        return bytes(self._data[self._at :])

    def pairs(self) -> Pairs:
        (count,) = self.take(_PAIRS)
        end = self._at + count * _PAIR.size
        found = tuple(_PAIR.iter_unpack(self._data[self._at : end]))
        if len(found) != count:
            raise ValueError(f"{len(found)} pairs of {count}")
        self._at = end
        return found


_KINDS: Final[Mapping[int, Callable[[Parts], Said]]] = MappingProxyType(
    {
        each.kind: each.unpack
        for each in (
            Welcome,
            Follow,
            Unfollow,
            Acked,
            Room,
            Agreed,
            HighWatermarks,
            Refused,
            Beat,
            Bye,
        )
    }
)


def unpack(metadata: pa.Buffer | None, batch: pa.RecordBatch | None) -> Said:
    """The message in a chunk of the stream.

    Raises:
        InvalidRequest: it is none.
    """
    if metadata is None or not metadata.size:
        raise _malformed("a message that says nothing")
    view = memoryview(metadata)
    if view[0] == Frame.kind:
        return Frame.unpack(metadata, batch)
    of_kind = _KINDS.get(view[0])
    if of_kind is None:
        raise _malformed(f"a message of the unknown kind {view[0]}")
    try:
        return of_kind(Parts(view[1:]))
    except (struct.error, ValueError, TypeError, AttributeError) as error:
        raise _malformed(f"a message of kind {view[0]} that is broken: {error}") from None


def _malformed(what: str) -> InvalidRequest:
    return InvalidRequest(f"the stream of replication carries {what}")


def _kind(message: Said) -> bytes:
    return bytes((message.kind,))


def _texts(*texts: str) -> bytes:
    encoded = [each.encode() for each in texts]
    return b"".join(_SHORT.pack(len(each)) + each for each in encoded)


def _pairs(entries: Pairs) -> bytes:
    return _PAIRS.pack(len(entries)) + b"".join(starmap(_PAIR.pack, entries))
