"""The messages between a leader and a follower on a stream of replication.

A stream carries all partitions that an ordered pair of brokers shares. The follower opens it with
:class:`OpenReplication`. The messages after it are MessagePack in the headers of frames: an array
of a number for the kind, and the fields in their order.

======================  ===========  ===============================================================
:class:`Welcome`        leader       the first message: the proof of the leader's identity
:class:`Follow`         follower     requests a partition, under a slot number that it chooses
:class:`Unfollow`       follower     ends a slot, perhaps with a reason
:class:`Acked`          follower     has appended, slot by slot, up to these entries
:class:`Room`           follower     the bytes that it accepts before it has acknowledged them
:class:`Agreed`         leader       the first entry of a slot
:class:`Frame`          leader       entries of a slot: rows of the entries table, and their bytes
:class:`HighWatermarks` leader       slot by slot, if no frame has carried it
:class:`Refused`        leader       the end of a slot, with the reason
:class:`Beat`           both         the leader requests a sign of life, the follower sends it
:class:`Bye`            leader       it is about to stop
:class:`AskPromise`     leader       cannot renew its lease: requests a promise not to lead
:class:`Promised`       follower     the promise not to lead the stream's partitions, for a while
======================  ===========  ===============================================================

A slot number stands for one session of one partition and is never reused on its stream. So late
messages for a slot that has ended are recognised, and dropped.

The bytes of a :class:`Frame` are its body: they go from the mapped file to the socket without a
copy. All other messages have no body.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Struct

from spark_stream.consistency.entries import ENTRY, ENTRY_SIZE, Table
from spark_stream.consistency.replication.epochs import EpochHistory
from spark_stream.errors import InvalidRequest, IsologError
from spark_stream.protocol import Bytes
from spark_stream.structs import OffsetField, Positional
from spark_stream.wire.messages import Message, from_plain, to_plain

PROMISES_SINCE: Final = 2
"""The first version of the protocol that has :class:`AskPromise` and :class:`Promised`."""

Pairs = tuple[tuple[int, int], ...]
"""(slot, entry index), …"""


class OpenReplication(Message):
    """The opening of a stream: the follower, with the proof that it is a broker of the cluster.

    ``stream``: an id that the follower made. The proof in the leader's :class:`Welcome` covers it.
    ``window_bytes``: as :class:`Room`.
    """

    stream: str
    follower: str
    proof: str
    window_bytes: int


class Packed(Positional, array_like=True):
    """A message without a body."""

    def pack(self) -> bytes:
        """Return the message as the header of a frame."""
        return _ENCODER.encode(self)


class Welcome(Packed, tag=1):
    """The leader accepts the stream, and proves that it is the broker that was called.

    ``version``: the greatest version of the protocol that it speaks. The connection uses the
    version from its HELLO.
    """

    version: int
    proof: str


class Follow(Packed, tag=2):
    """Start a session. ``history``: the epochs in the follower's log."""

    slot: int
    topic_id: str
    partition: int
    leader_epoch: int
    generation: str
    history: EpochHistory


class Unfollow(Packed, tag=3):
    """End a slot's session, with the reason if its leader can act on it.

    Attributes:
        slot: The slot of the session that ends.
        damaged: The entry that arrived damaged, or None.
        refuses_writes: Whether the follower's log refuses writes.
    """

    slot: int
    damaged: OffsetField | None = None
    refuses_writes: bool = False


class Acked(Packed, tag=4):
    """The follower's log holds all entries of a slot before this one."""

    entries: Pairs


class Room(Packed, tag=5):
    """At most so many bytes of frames may be on their way or unacknowledged, or one frame."""

    window_bytes: int


class Agreed(Packed, tag=6):
    """The first frame of a slot will begin at ``entry``.

    ``reset_offset`` None: both logs hold the same entries before it, and the follower truncates the
    rest of its log. Otherwise the logs share no entries: the follower's log begins again, at this
    entry and offset.
    """

    slot: int
    entry: OffsetField
    reset_offset: OffsetField | None
    high_watermark: OffsetField


class HighWatermarks(Packed, tag=7):
    """The high watermarks of slots, as entry indexes."""

    entries: Pairs


class Refused(Packed, tag=8):
    """A slot's session has not begun, or has ended."""

    slot: int
    error: IsologError


class Beat(Packed, tag=9):
    """A sign of life."""


class Bye(Packed, tag=10):
    """The leader is about to stop."""


class AskPromise(Packed, tag=12):
    """A request for a promise not to lead the stream's partitions for ``lasts_s`` seconds.

    ``asked_at`` is a time of the leader's clock. The follower only sends it back.
    """

    asked_at: float
    lasts_s: float


class Promised(Packed, tag=13):
    """The promise, for all slots that the follower has when it sends this."""

    asked_at: float
    lasts_s: float


class FrameFacts(Packed, tag=11):
    """The header of a frame. ``rows`` are the bytes of the entries table."""

    slot: int
    leader_epoch: int
    first: OffsetField
    high_watermark: OffsetField
    rows: memoryview


class Frame(Struct, frozen=True, eq=False):
    """Consecutive entries of a slot.

    ``rows`` are the leader's rows of the entries table (their ``position`` means nothing to the
    follower), ``data`` the bytes of their batches, one behind the other.
    """

    slot: int
    leader_epoch: int
    first: int
    high_watermark: int
    rows: Table
    data: pa.Buffer

    @property
    def size(self) -> int:
        """The bytes that it takes of the window."""
        return int(self.rows.nbytes + self.data.size)

    @property
    def end(self) -> int:
        """The index after its last entry."""
        return self.first + len(self.rows)

    def pack(self) -> tuple[bytes, memoryview]:
        """Return the header and the body of the frame."""
        rows = memoryview(self.rows.tobytes())
        facts = FrameFacts(self.slot, self.leader_epoch, self.first, self.high_watermark, rows)
        return facts.pack(), memoryview(self.data)


def _frame(facts: FrameFacts, body: Bytes) -> Frame:
    count, rest = divmod(facts.rows.nbytes, ENTRY_SIZE)
    if not count or rest:
        raise _malformed("a frame without its rows")
    rows = np.frombuffer(facts.rows, ENTRY)
    data = pa.py_buffer(body)
    return Frame(facts.slot, facts.leader_epoch, facts.first, facts.high_watermark, rows, data)


_OfLeader = Welcome | Agreed | HighWatermarks | Refused | Bye | AskPromise
_OfFollower = Follow | Unfollow | Acked | Room | Promised
_Bare = _OfLeader | _OfFollower | Beat
_Metadata = _Bare | FrameFacts
Said = _Bare | Frame
_ENCODER: Final = msgspec.msgpack.Encoder(enc_hook=to_plain)
_DECODER: Final[msgspec.msgpack.Decoder[Any]] = msgspec.msgpack.Decoder(
    _Metadata, dec_hook=from_plain
)


def unpack(header: Bytes, body: Bytes) -> Said:
    """Return the message in a frame of the stream.

    Raises:
        InvalidRequest: the frame has no valid message.
    """
    if not header:
        raise _malformed("an empty message")
    try:
        found = _DECODER.decode(header)
    except (ValueError, RecursionError) as error:
        raise _malformed(f"a message that is broken: {error}") from None
    said: Said = _frame(found, body) if isinstance(found, FrameFacts) else found
    return said


def _malformed(what: str) -> InvalidRequest:
    return InvalidRequest(f"the stream of replication carries {what}")
