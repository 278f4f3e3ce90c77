"""The protocol core: two sides connected by bytes that are split, damaged or truncated."""

from __future__ import annotations

import struct

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from spark_stream.protocol import (
    FRAMES_AT_ONCE,
    OLDEST,
    VERSION,
    Cancelled,
    Connection,
    ConnectionLimits,
    Credited,
    Ending,
    Event,
    Failed,
    Lost,
    Ready,
    Received,
    StreamOpened,
    StreamOver,
)
from spark_stream.protocol.connection import (
    CONTROL_BURST,
    CONTROL_PER_S,
    FRAMES_OF_STRANGER,
    Hello,
)
from spark_stream.protocol.frames import MARK, PREFIX, SMALL_BYTES_MAX, FrameKind, frame_bytes
from tests.examples import examples

LIMITS = ConnectionLimits(
    credit=100_000, body_bytes_max=1 << 20, header_bytes_max=1 << 17, streams_max=5
)


def joined(side: Connection) -> bytes:
    return b"".join(bytes(part) for part in side.output())


class Pair:
    """A client and a broker whose bytes are exchanged when `exchange` is called."""

    def __init__(
        self, client: ConnectionLimits = LIMITS, broker: ConnectionLimits = LIMITS
    ) -> None:
        self.client = Connection(is_client=True, greeting=b"c", now=0, limits=client)
        self.broker = Connection(is_client=False, greeting=b"b", now=0, limits=broker)
        self.at_client: list[Event] = []
        self.at_broker: list[Event] = []
        self.exchange()

    def exchange(self) -> None:
        while True:
            up, down = joined(self.client), joined(self.broker)
            if not up and not down:
                return
            self.at_broker += self.broker.receive(up, 0)
            self.at_client += self.client.receive(down, 0)

    def open(self, **options: object) -> int:
        number = self.client.open("method", b"asked", **options)  # type: ignore[arg-type]
        assert number is not None
        self.exchange()
        self.at_broker.clear()
        self.at_client.clear()
        return number


def ends(lost: list[Event]) -> str:
    assert isinstance(lost[-1], Lost)
    return lost[-1].code


def test_both_sides_are_ready_after_their_hellos() -> None:
    pair = Pair()
    assert pair.at_client == [Ready(VERSION, b"b")]
    assert pair.at_broker == [Ready(VERSION, b"c")]


def test_a_call_is_one_frame_each_way() -> None:
    pair = Pair()
    stream = pair.client.open("act", b"header", b"body", end=True)
    assert stream == 1
    pair.exchange()
    assert pair.at_broker[-1] == StreamOpened(1, "act", b"header", b"body", end=True)
    pair.broker.send(1, b"facts", b"answer", end=True)
    pair.exchange()
    assert pair.at_client[-1] == Received(1, b"facts", b"answer", end=True)
    assert pair.client.open_streams == pair.broker.open_streams == 0


def test_a_body_may_be_sent_in_parts() -> None:
    pair = Pair()
    pair.open()
    words = memoryview(bytes(80_000)).cast("Q")
    pair.broker.send(1, b"f", (b"ab", b"", words, b"c"))
    pair.exchange()
    assert pair.at_client == [Received(1, b"f", b"ab" + bytes(80_000) + b"c", end=False)]
    pair.at_client.clear()
    pair.broker.send(1, b"f", (b"d", words[:2]), end=True)
    pair.exchange()
    assert pair.at_client == [Received(1, b"f", b"d" + bytes(16), end=True)]


def test_versions_are_negotiated_or_both_ranges_are_reported() -> None:
    new = Connection(is_client=True, greeting=b"", now=0, versions=(2, 3))
    middle = Connection(is_client=False, greeting=b"", now=0, versions=(1, 2))
    assert middle.receive(joined(new), 0) == [Ready(2, b"")]
    assert new.receive(joined(middle), 0) == [Ready(2, b"")]

    new = Connection(is_client=True, greeting=b"", now=0, versions=(2, 3))
    old = Connection(is_client=False, greeting=b"", now=0, versions=(1, 1))
    assert ends(old.receive(joined(new), 0)) == "VERSION"
    [lost] = new.receive(joined(old), 0)
    refused = "no version of the protocol in common: the client speaks 2 to 3, the broker 1"
    assert lost == old.lost == Lost("VERSION", refused)


def test_an_answer_in_a_version_that_was_not_offered_ends_the_connection() -> None:
    client = Connection(is_client=True, greeting=b"", now=0, versions=(1, 1))
    ends_it = Connection(is_client=True, greeting=b"", now=0, versions=(2, 3))
    [lost] = client.receive(joined(ends_it), 0)
    refused = "no version of the protocol in common: the client speaks 1, the broker 2 to 3"
    assert lost == Lost("VERSION", refused)


def test_a_release_speaks_its_own_version_and_the_previous_one() -> None:
    """Version 1 is the first. A side that speaks only the next two is refused."""
    assert max(1, VERSION - 1) == OLDEST
    for version, is_spoken in ((VERSION, True), (VERSION + 1, True), (VERSION + 2, False)):
        other = Connection(
            is_client=True, greeting=b"", now=0, versions=(max(1, version - 1), version)
        )
        mine = Connection(is_client=False, greeting=b"", now=0)
        [event] = mine.receive(joined(other), 0)
        assert isinstance(event, Ready) is is_spoken


def test_stream_without_credit_waits_while_others_continue() -> None:
    pair = Pair()
    slow, fast = pair.open(), pair.open()
    pair.client.send(slow, b"", bytes(150_000))
    assert not pair.client.may_send(slow)
    assert pair.client.may_send(fast)
    pair.client.send(fast, b"", b"x")
    pair.exchange()
    first, other = pair.at_broker
    assert isinstance(first, Received)
    assert isinstance(other, Received)
    assert other.stream == fast
    pair.broker.grant_credit(slow, first.size)
    pair.exchange()
    assert pair.at_client == [Credited(slow)]
    assert pair.client.may_send(slow)


def test_credit_of_an_opening_is_for_the_answer() -> None:
    pair = Pair()
    stream = pair.open(end=True, credit=1_000_000)
    for _ in range(5):
        assert pair.broker.may_send(stream)
        pair.broker.send(stream, b"", bytes(200_000))
    pair.broker.send(stream, b"", bytes(200_000))
    assert not pair.broker.may_send(stream)
    pair.exchange()
    assert len(pair.at_client) == 6


def test_the_end_of_a_stream_needs_no_credit() -> None:
    pair = Pair()
    stream = pair.open()
    pair.client.send(stream, b"", bytes(200_000))
    pair.client.send(stream, b"", end=True)
    pair.exchange()
    assert pair.at_broker[-1] == Received(stream, b"", b"", end=True)
    with pytest.raises(StreamOver):
        pair.client.send(stream, b"late")


def test_error_ends_a_stream_and_late_frames_are_dropped() -> None:
    pair = Pair()
    stream = pair.open()
    pair.broker.fail(stream, b"why")
    pair.client.send(stream, b"", b"meanwhile")
    pair.exchange()
    assert pair.at_client == [Failed(stream, b"why")]
    assert pair.at_broker == []
    assert pair.client.open_streams == pair.broker.open_streams == 0


def test_client_cancels_a_stream() -> None:
    pair = Pair()
    stream = pair.open()
    pair.client.cancel(stream)
    pair.broker.send(stream, b"", b"meanwhile")
    pair.exchange()
    assert pair.at_broker == [Cancelled(stream)]
    assert pair.at_client == []
    with pytest.raises(StreamOver):
        pair.broker.send(stream, b"late")


def test_streams_are_limited_by_the_broker() -> None:
    pair = Pair()
    numbers = [pair.open() for _ in range(5)]
    assert pair.client.open("one more", b"") is None
    pair.client.cancel(numbers[0])
    assert pair.client.open("now", b"") == 6


def test_stopping_broker_finishes_open_streams() -> None:
    pair = Pair()
    stream = pair.open(end=True)
    pair.broker.stop("shutting down")
    pair.broker.send(stream, b"", b"still", end=True)
    pair.exchange()
    assert pair.at_client == [
        Ending("STOPPING", "shutting down"),
        Received(stream, b"", b"still", end=True),
    ]
    with pytest.raises(StreamOver):
        pair.client.open("new", b"")


def test_frames_above_the_peers_limit_are_not_sent() -> None:
    pair = Pair()
    stream = pair.open()
    with pytest.raises(ValueError, match="a body of 1048577 bytes; at most 1048576"):
        pair.client.send(stream, b"", bytes((1 << 20) + 1))


def ticked(side: Connection, begin: int, end: int) -> list[Event]:
    """Return the events of ticks, one a second."""
    return [event for second in range(begin, end) for event in side.tick(second)]


@pytest.mark.rule("the timeout of a silent connection", "protocol/connection.py")
def test_silent_peer_gets_one_ping_and_is_then_lost() -> None:
    pair = Pair(broker=replace(LIMITS, heartbeat_s=5, silence_s=15))
    assert ticked(pair.broker, 1, 16) == []
    assert joined(pair.broker) == b"".join(map(bytes, frame_bytes(FrameKind.PING, 0)))
    assert ends(pair.broker.tick(16)) == "SILENT"
    assert ticked(pair.broker, 17, 40) == []


def test_paused_side_reads_before_it_ends_the_connection() -> None:
    pair = Pair()
    assert ticked(pair.broker, 1, 3) == []
    assert pair.broker.tick(1000) == []  # the frames of that time wait in the socket
    assert pair.broker.receive(b"".join(map(bytes, frame_bytes(FrameKind.PONG, 0))), 1000) == []
    assert ticked(pair.broker, 1001, 1016) == []
    assert ends(pair.broker.tick(1016)) == "SILENT"


def test_a_peer_that_answers_pings_stays_connected() -> None:
    pair = Pair()
    for now in range(100):
        pair.at_client += pair.client.tick(now) + pair.client.receive(joined(pair.broker), now)
        pair.at_broker += pair.broker.tick(now) + pair.broker.receive(joined(pair.client), now)
    assert pair.client.lost is pair.broker.lost is None


def test_connection_without_hello_is_lost() -> None:
    broker = Connection(is_client=False, greeting=b"", now=0)
    assert ticked(broker, 1, 11) == []
    assert ends(broker.tick(11)) == "TIMEOUT"


def test_frame_that_never_completes_is_lost() -> None:
    pair = Pair()
    pair.broker.receive(PREFIX.pack(MARK, FrameKind.OPEN, 0, 1, 1000, 0), 0)
    lost: list[Event] = []
    for second in range(1, 60):
        lost += pair.broker.receive(b"x", second) + pair.broker.tick(second)
        if lost:
            break
    assert ends(lost) == "TIMEOUT"
    assert second > 30


@pytest.mark.parametrize("is_upload", [True, False], ids=["upload", "download"])
def test_a_frame_on_a_slow_link_may_take_longer_than_its_senders_silence_limit(
    is_upload: bool,
) -> None:
    pair = Pair(
        client=replace(LIMITS, heartbeat_s=2, silence_s=6),
        broker=replace(LIMITS, credit=1 << 30, heartbeat_s=5, silence_s=15),
    )
    stream = pair.open()
    sender, receiver = pair.client, pair.broker
    if not is_upload:
        sender, receiver = receiver, sender
    sender.send(stream, b"", bytes(1 << 20))
    sent, rate = joined(sender), 24 << 10
    lost: list[Event] = []
    for second in range(1, 50):
        arrives, sent = sent[:rate], sent[rate:] + joined(sender)
        lost += receiver.receive(arrives, second) + receiver.tick(second)
        lost += sender.receive(joined(receiver), second) + sender.tick(second)
        if any(isinstance(event, Received) for event in lost):
            break
    assert second > 40
    assert [type(event) for event in lost] == [Received]


def test_pause_of_reading_does_not_count_for_the_frame_timeout() -> None:
    pair = Pair(broker=LIMITS)
    data = b"".join(map(bytes, frame_bytes(FrameKind.OPEN, 0, bytes(1000))))
    pair.broker.receive(data[:500], 0)
    lost: list[Event] = []
    for second in range(1, 60):
        pair.broker.on_heard(second)
        lost += pair.broker.tick(second)
    assert lost == []
    assert ticked(pair.broker, 60, 75) == []  # the frame has its whole time again
    for second in range(75, 100):
        lost += pair.broker.receive(b"x", second) + pair.broker.tick(second)
    assert ends(lost) == "TIMEOUT"


def hello() -> bytes:
    return joined(Connection(is_client=True, greeting=b"", now=0))


def frame(kind: int, stream: int, header: bytes = b"", body: bytes = b"", flags: int = 0) -> bytes:
    prefix = PREFIX.pack(MARK, kind, flags, stream, len(header), len(body))
    return prefix + header + body


DATA = FrameKind.DATA
OPEN = frame(FrameKind.OPEN, 1, b"\x93\xa1m\x00\xc4\x00")


@pytest.mark.rule(
    "the frames that a peer may send, and those that end a connection",
    "protocol/connection.py",
    "protocol/frames.py",
)
@pytest.mark.parametrize(
    ("code", "data"),
    [
        ("NOT_ISOLOG", b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n"),
        ("NOT_ISOLOG", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(20)),
        ("UNKNOWN_FRAME", frame(77, 1)),
        ("UNKNOWN_FRAME", frame(FrameKind.DATA, 1, flags=8)),
        ("FRAME_TOO_LARGE", struct.pack("<HBBIII", MARK, FrameKind.DATA, 0, 1, 0, 2**32 - 1)),
        ("FRAME_TOO_LARGE", struct.pack("<HBBIII", MARK, FrameKind.HELLO, 0, 0, 2**32 - 1, 0)),
        ("NO_HELLO", OPEN),
        ("SECOND_HELLO", hello() + hello()),
        ("BAD_HEADER", frame(FrameKind.HELLO, 0, b"nonsense")),
        ("BAD_HEADER", hello() + frame(FrameKind.OPEN, 1, b"\x93\xa1")),
        ("BAD_HEADER", frame(FrameKind.HELLO, 0, b"\x91" * 10_000)),
        ("BAD_HEADER", hello() + frame(FrameKind.OPEN, 1, b"\x91" * 10_000)),
        ("STREAM_NUMBER", hello() + OPEN + OPEN),
        ("STREAM_NUMBER", hello() + frame(FrameKind.OPEN, 0, b"")),
        ("UNKNOWN_STREAM", hello() + frame(FrameKind.DATA, 9)),
        ("UNKNOWN_STREAM", hello() + frame(FrameKind.CANCEL, 1)),
        ("UNKNOWN_STREAM", hello() + OPEN + frame(FrameKind.CREDIT, 2, b"\x01")),
        ("CREDIT", hello() + OPEN + frame(FrameKind.CREDIT, 1, b"\x00")),
        ("CREDIT", hello() + OPEN + frame(FrameKind.CREDIT, 1, b"\xcf" + b"\x7f" * 8)),
        ("STREAM_ENDED", hello() + OPEN + frame(DATA, 1, flags=1) + frame(DATA, 1)),
        ("NO_CREDIT", hello() + OPEN + 2 * frame(FrameKind.DATA, 1, body=bytes(200_000))),
        ("WRONG_SIDE", hello() + OPEN + frame(FrameKind.ERROR, 1)),
        ("TOO_MANY_STREAMS", hello() + b"".join(
            frame(FrameKind.OPEN, number, b"\x93\xa1m\x00\xc4\x00") for number in range(1, 8)
        )),
    ],
)  # fmt: skip
def test_protocol_error_ends_the_connection_with_its_reason(code: str, data: bytes) -> None:
    broker = Connection(is_client=False, greeting=b"", now=0, limits=LIMITS)
    events = broker.receive(data, 0)
    assert ends(events) == code
    assert broker.receive(hello(), 0) == []
    assert broker.open_streams == 0
    client = Connection(is_client=True, greeting=b"", now=0)
    assert ends(client.receive(joined(broker), 0)) == code


def test_frame_sizes_are_checked_before_memory_is_allocated() -> None:
    sizes: list[int] = []

    def allocate(size: int) -> bytearray:
        sizes.append(size)
        return bytearray(size)

    broker = Connection(is_client=False, greeting=b"", now=0, limits=LIMITS, allocate=allocate)
    broker.receive(hello() + OPEN, 0)
    broker.receive(PREFIX.pack(MARK, FrameKind.DATA, 0, 1, 0, 4_000_000_000), 0)
    assert sizes == []
    assert broker.lost is not None


# -- floods ---------------------------------------------------------------------------------------

PING = frame(FrameKind.PING, 0)
HELLO_OF_BROKER = Hello(VERSION, VERSION, LIMITS.credit, 5, 1 << 17, 1 << 20)


def broker_of(*, trusted: bool = True) -> Connection:
    """Return the broker's side of a connection after the client's HELLO."""
    broker = Connection(is_client=False, greeting=b"", now=0, limits=LIMITS, trusted=trusted)
    assert broker.receive(hello(), 0) == [Ready(VERSION, b"")]
    broker.output()
    return broker


def all_events(side: Connection, data: bytes, now: float = 0) -> list[Event]:
    """Return the events of all frames, however many calls they take."""
    events = side.receive(data, now)
    while side.has_more:
        events += side.receive(b"", now)
    return events


def test_one_call_handles_a_bounded_number_of_frames() -> None:
    whole = b"".join(
        frame(FrameKind.OPEN, number, b"\x93\xa1m\x00\xc4\x00") + frame(FrameKind.CANCEL, number)
        for number in range(1, 101)
    )
    broker, counts = broker_of(), []
    counts.append(len(broker.receive(whole + PING[:7], 0)))
    while broker.has_more:
        counts.append(len(broker.receive(b"", 0)))
    assert counts == [FRAMES_AT_ONCE, FRAMES_AT_ONCE, FRAMES_AT_ONCE, 200 - 3 * FRAMES_AT_ONCE]
    assert joined(broker) == b""
    assert broker.receive(PING[7:], 0) == []
    assert joined(broker) == frame(FrameKind.PONG, 0)


@pytest.mark.rule("the number of frames of an unauthenticated client", "protocol/connection.py")
def test_a_client_that_is_not_trusted_may_send_few_frames() -> None:
    broker = broker_of(trusted=False)
    assert all_events(broker, PING * (FRAMES_OF_STRANGER - 1)) == []
    assert ends(all_events(broker, PING)) == "TOO_MANY_FRAMES"
    assert broker.was_refused
    broker = broker_of(trusted=False)
    broker.receive(OPEN, 0)
    broker.trust()
    assert all_events(broker, PING * FRAMES_OF_STRANGER) == []


CANCEL = frame(FrameKind.CANCEL, 1)
CREDIT = frame(FrameKind.CREDIT, 1, b"\x01")


@pytest.mark.rule("the rate of control frames that ends a connection", "protocol/connection.py")
@pytest.mark.parametrize(
    "flood",
    [PING, frame(FrameKind.PONG, 0), CANCEL, CREDIT, frame(DATA, 1)],
    ids=["ping", "pong", "cancel of an old stream", "credit of an old stream", "empty data"],
)
def test_needless_control_frames_end_the_connection(flood: bytes) -> None:
    broker = broker_of()
    broker.receive(OPEN + CANCEL, 0)
    assert all_events(broker, flood * (CONTROL_BURST - 10)) == []
    assert ends(all_events(broker, flood * 20)) == "TOO_MANY_FRAMES"


def test_credit_of_an_open_stream_is_counted_too() -> None:
    broker = broker_of()
    broker.receive(OPEN, 0)
    assert ends(all_events(broker, CREDIT * (CONTROL_BURST + 10))) == "TOO_MANY_FRAMES"


def test_control_frames_that_clients_need_end_no_connection() -> None:
    """A hundred each second without end, and for each stream a CANCEL after its answer."""
    broker = broker_of()
    for second in range(1000):
        assert all_events(broker, PING * int(CONTROL_PER_S), second) == []
    for number in range(1, 5 * CONTROL_BURST):
        broker.receive(frame(FrameKind.OPEN, number, b"\x93\xa1m\x00\xc4\x00", flags=1), 1000)
        broker.send(number, b"", b"answer", end=True)
        assert broker.receive(frame(FrameKind.CANCEL, number), 1000) == []


def test_each_frame_that_a_client_gets_may_be_answered_with_credit() -> None:
    broker = broker_of()
    broker.receive(OPEN, 0)
    for _ in range(5 * CONTROL_BURST):
        broker.send(1, b"", b"")
        assert broker.receive(frame(FrameKind.CREDIT, 1, b"\x10"), 0) == []


def test_credit_is_collected_while_the_peer_may_not_send() -> None:
    """A slow reader of many small frames before a large one must not exceed its budget."""
    pair = Pair()
    number = pair.open(end=True)
    for _ in range(500):
        pair.broker.send(number, b"", b"small")
        pair.exchange()
    pair.broker.send(number, b"", bytes(LIMITS.body_bytes_max))
    pair.exchange()
    sizes = [each.size for each in pair.at_client if isinstance(each, Received)]
    assert len(sizes) == 501
    for size in sizes[:-1]:
        pair.client.grant_credit(number, size)
    assert pair.client.output() == []
    pair.client.grant_credit(number, sizes[-1])
    pair.exchange()
    assert pair.broker.may_send(number)


def test_one_answer_is_enough_for_all_pings_before_it() -> None:
    broker = broker_of()
    broker.receive(PING * 10, 0)
    assert joined(broker) == frame(FrameKind.PONG, 0)
    broker.receive(PING, 0)
    assert joined(broker) == frame(FrameKind.PONG, 0)


def test_frames_of_a_failed_stream_are_accepted_up_to_its_credit() -> None:
    """They may have been sent before the client got the error. Later ones are a flood."""
    client, broker = Connection(is_client=True, greeting=b"", now=0, limits=LIMITS), broker_of()
    client.receive(frame(FrameKind.HELLO, 0, msgspec.msgpack.encode(HELLO_OF_BROKER)), 0)
    client.output()
    client.open("append", b"")
    broker.receive(joined(client), 0)
    for size in (10, 50_000, 1, 49_900, 500_000):  # the last one passes the rest
        client.send(1, b"", bytes(size))
    client.send(1, b"", end=True)
    broker.fail(1, b"no")
    assert all_events(broker, joined(client)) == []
    late = frame(DATA, 1, body=b"x")
    assert ends(all_events(broker, late * (LIMITS.credit // len(late) + 300))) == "NO_CREDIT"


def test_data_after_a_stream_was_cancelled_has_no_credit() -> None:
    broker = broker_of()
    broker.receive(OPEN + CANCEL, 0)
    assert ends(broker.receive(frame(DATA, 1, body=b"x"), 0)) == "NO_CREDIT"


# -- any split of the bytes, any garbage ----------------------------------------------------------

SIZES = st.sampled_from([0, 1, 7, 1000, SMALL_BYTES_MAX, SMALL_BYTES_MAX + 1, 90_000])


@st.composite
def conversations(draw: st.DrawFn) -> bytes:
    """Generate the bytes of a client, as one piece."""
    client = Connection(is_client=True, greeting=b"hi", now=0)
    sent = joined(client)
    broker = Connection(
        is_client=False, greeting=b"", now=0, limits=replace(LIMITS, credit=1 << 39)
    )
    broker.receive(sent, 0)
    client.receive(joined(broker), 0)
    live: list[int] = []
    for _ in range(draw(st.integers(1, 12))):
        step = draw(st.sampled_from(["open", "send", "send", "end", "cancel"]))
        header, body = bytes(draw(SIZES)), bytes(draw(SIZES))
        if step == "open" or not live:
            number = client.open("m", header, body, end=draw(st.booleans()))
            if number is not None:
                live.append(number)
            continue
        number = draw(st.sampled_from(live))
        try:
            if step == "cancel":
                client.cancel(number)
            else:
                client.send(number, header, body, end=step == "end")
        except StreamOver:
            pass
        sent += joined(client)
    return sent + joined(client)


def fed(data: bytes, cuts: list[int]) -> list[Event]:
    """Return the events of a broker that gets the bytes in these pieces, in either way."""
    broker = Connection(
        is_client=False, greeting=b"", now=0, limits=replace(LIMITS, credit=1 << 39)
    )
    events: list[Event] = []
    for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        piece = memoryview(data)[begin:end]
        while piece.nbytes and (target := broker.target) is not None:
            count = min(target.nbytes, piece.nbytes)
            target[:count] = piece[:count]
            piece = piece[count:]
            events += broker.on_filled(count, 0)
        if piece.nbytes:
            events += broker.receive(piece, 0)
    return events


@settings(max_examples=examples(150), deadline=None)
@given(conversations(), st.data())
def test_the_events_do_not_depend_on_how_the_bytes_were_split(
    data: bytes, draws: st.DataObject
) -> None:
    whole = fed(data, [])
    assert not any(isinstance(event, Lost) for event in whole)
    cuts = draws.draw(st.lists(st.integers(0, len(data)), max_size=30).map(sorted))
    assert fed(data, cuts) == whole
    end = draws.draw(st.integers(0, len(data)))
    part = fed(data[:end], [cut for cut in cuts if cut <= end])
    assert part == whole[: len(part)]


def test_a_large_body_may_also_arrive_in_pieces_that_are_copied() -> None:
    client = Connection(is_client=True, greeting=b"", now=0)
    data = joined(client) + OPEN + frame(DATA, 1, b"h", bytes(range(250)) * 400)
    broker = Connection(is_client=False, greeting=b"", now=0, limits=LIMITS)
    events = [
        event
        for begin in range(0, len(data), 7_000)
        for event in broker.receive(data[begin : begin + 7_000], 0)
    ]
    assert events == fed(data, [])


def test_any_split_of_the_bytes_gives_the_same_events() -> None:
    client = Connection(is_client=True, greeting=b"", now=0)
    data = joined(client) + OPEN + frame(FrameKind.DATA, 1, b"h", b"body", flags=1)
    whole = fed(data, [])
    for first in range(len(data)):
        for second in range(first, len(data)):
            assert fed(data, [first, second]) == whole


@settings(max_examples=examples(300), deadline=None)
@given(conversations(), st.data())
def test_damaged_bytes_end_delivery_without_an_exception(data: bytes, draws: st.DataObject) -> None:
    changed = bytearray(data)
    for _ in range(draws.draw(st.integers(1, 5))):
        changed[draws.draw(st.integers(0, len(data) - 1))] = draws.draw(st.integers(0, 255))
    events = fed(bytes(changed), [])
    assert all(not isinstance(event, Lost) for event in events[:-1])


@settings(max_examples=examples(200), deadline=None)
@given(st.binary(max_size=200))
def test_garbage_ends_the_connection_or_waits_for_more(garbage: bytes) -> None:
    broker = Connection(is_client=False, greeting=b"", now=0)
    events = broker.receive(garbage, 0)
    assert all(isinstance(event, Lost) for event in events)
