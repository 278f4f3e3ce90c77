"""The cost of protection: TLS and authentication, next to a broker without them.

The brokers run side by side, and are measured in turns. A single call to one is followed by a call
to another, so other load of the machine affects all of them equally.
"""

from __future__ import annotations

import os
import random
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

import psutil
import pyarrow as pa

import spark_stream as isolog
from bench.clock import now
from bench.records import values
from bench.results import Results
from spark_stream.access.callers import Caller, Grant, KnownBy, hash_password
from spark_stream.access.rules import (
    Effect,
    Operation,
    Pattern,
    Resource,
    ResourceKind,
    Rule,
    RuleSet,
)
from spark_stream.cli.commands.certs import create
from spark_stream.client.administration import AccessClient
from spark_stream.client.connecting.access import access_of
from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.cluster.access import RULES, USERS, User, encode
from spark_stream.cluster.stores.sqlite import SqliteStore
from spark_stream.testing.local_cluster import LocalCluster
from spark_stream.transport.tls import TlsFiles, client_context, server_context
from spark_stream.wire.topic_messages import AskedTopic, ListOffsets

TURNS: Final = 7
ROUNDS: Final = 4_000
WARM: Final = 200
ROWS: Final = 10_000
PRINCIPALS: Final = 1_000
RULES_EACH: Final = 10
USER, PASSWORD = "bench", "correct horse battery"
TOPIC: Final = "t"
LARGE: Final = "large"
TRANSFERRED: Final = 1 << 29
TRANSFER_BYTES: Final = 256 << 10
"""The bytes of one call to a socket, as in ``transport.channel``."""

_TOPIC: Final = Pattern(ResourceKind.TOPIC, TOPIC)
Options = Mapping[str, str]


def run(place: Path, results: Results, seconds: float) -> None:
    """``seconds`` for each rate, of each broker, in all turns together."""
    place.mkdir()
    create(place / "certs", ["1"], host=["localhost", "127.0.0.1"], days=1)
    ca, cert, key = (str(place / "certs" / name) for name in ("ca.pem", "1.pem", "1-key.pem"))
    one = pa.record_batch({"value": values(1)})
    tls, trusting = {"tls": {"cert": cert, "key": key}}, {"tls.ca": ca}
    with ExitStack() as stack:

        def start(conf: Mapping[str, Any], options: Options, rules: int | None = None) -> _Place:
            return stack.enter_context(_broker(one.schema, conf, options, rules))

        _sockets(results, TlsFiles(cert, key), TlsFiles(ca=ca))
        _rates(results, start({}, {}), start(tls, trusting), seconds / TURNS)
        stack.close()  # a connection that has carried gigabytes is slower
        plain = start({}, {})
        peers = {"cert": cert, "key": key, "ca": ca}  # a broker with authentication requires it
        asking = {"authentication": True, "super_users": ["root"], "peer_tls": peers}
        who = {"user": USER, "password": PASSWORD}
        many, alike = (start(asking, who, PRINCIPALS * RULES_EACH) for _ in range(2))
        restricted = alike.restricted()  # a broker that is called twice as often is faster
        stack.callback(restricted.close)
        others = {
            "TLS": start(tls, trusting),
            "a password": start(asking, who, 1),
            f"{PRINCIPALS * RULES_EACH:,} rules of {PRINCIPALS:,} principals": many,
            "the same, and a restricted token": restricted,
        }
        _calls(results, "one-row append", plain, others, lambda at: at.appender(one))
        _calls(results, "list-offsets", plain, others, lambda at: at.offsets_call())
    _decisions(results)


class _Place:
    """A broker, and the calls of one client."""

    def __init__(self, address: str, options: Options) -> None:
        self._address = address
        self._access = access_of(options, {})
        given = {name.replace(".", "_"): value for name, value in options.items()}
        self.log = isolog.connect(address, **given)
        self._pid = self.log.status().pid
        self._producer = self.log.producer()
        self._connection = ClusterConnection(address, access=self._access)

    def appender(self, batch: pa.RecordBatch) -> Callable[[], object]:
        """Return a call that appends a batch over an open stream, and awaits its answer."""
        producer = self._producer
        return lambda: producer.append(TOPIC, batch, partition=0).result()

    def offsets_call(self) -> Callable[[], object]:
        """Return a call of a cheap action."""
        asked, call = ListOffsets.of(topics=[AskedTopic.of(topic=TOPIC)]), self._connection.call
        return lambda: call(asked)

    def restricted(self) -> _Place:
        """Return the same place for a client with a token for only this topic."""
        grants = [("write", f"topic:{TOPIC}"), ("read", f"topic:{TOPIC}")]
        token = AccessClient(self._connection).create_token(grants=grants).token
        return _Place(self._address, {"token": token})

    def processor_s(self) -> float:
        """Return the seconds of processor that this process and the broker have used."""
        found = [psutil.Process(pid).cpu_times() for pid in (os.getpid(), self._pid)]
        return float(sum(each.user + each.system for each in found))

    def close(self) -> None:
        self._producer.close()
        self._connection.close()
        self.log.close()


@contextmanager
def _broker(
    schema: pa.Schema, conf: Mapping[str, Any], options: Options, rules: int | None
) -> Iterator[_Place]:
    """A broker whose records are read through the connection. ``rules``: with authentication."""
    with LocalCluster(1, conf={"mapped_reads": False, **conf}) as cluster:
        if rules is not None:
            _put_access(cluster.folder / "metadata" / "metadata.sqlite", rules)
            cluster.restart(1)
        place = _Place(cluster.bootstrap, options)
        place.log.create_topic(TOPIC, schema=schema)
        with closing(place):
            yield place


@contextmanager
def broker_with_rules(schema: pa.Schema, rules: int) -> Iterator[_Place]:
    """A broker with a password, without TLS to clients, and so many rules."""
    with TemporaryDirectory() as folder:
        create(Path(folder), ["1"], host=["localhost", "127.0.0.1"], days=1)
        ca, cert, key = (str(Path(folder) / name) for name in ("ca.pem", "1.pem", "1-key.pem"))
        peers = {"cert": cert, "key": key, "ca": ca}
        conf = {"authentication": True, "super_users": ["root"], "peer_tls": peers}
        with _broker(schema, conf, {"user": USER, "password": PASSWORD}, rules) as found:
            yield found


def _decisions(results: Results, times: int = 100_000) -> None:
    """The time of one decision, without its call."""
    rules = RuleSet(_rules(PRINCIPALS * RULES_EACH))
    grants = tuple(Grant(each, _TOPIC) for each in (Operation.READ, Operation.WRITE))
    asked = Resource(ResourceKind.TOPIC, TOPIC)
    for name, caller in (
        ("", Caller(USER, KnownBy.USER)),
        (", and a restricted token", Caller(USER, KnownBy.TOKEN, grants=grants)),
    ):
        began = now()
        for _ in range(times):
            caller.may(rules, Operation.DESCRIBE, asked)
        took = (now() - began) * 1e3 / times
        results.add(
            f"a decision among {PRINCIPALS * RULES_EACH:,} rules{name}", "ms", measured=took
        )


def _put_access(store: Path, rules: int) -> None:
    """Put users and rules into the store. The bench's own rule is the last one."""
    password = hash_password(PASSWORD)
    principals = [USER, *map(_name, range(rules // RULES_EACH))]
    with closing(SqliteStore(store)) as opened:
        for name in principals:
            made = encode(User(name, password, secrets.token_hex(8)))
            assert opened.put(USERS + name, made, 0) is not None
        for rule in _rules(rules):
            assert opened.put(f"{RULES}{rule}", encode(rule), 0) is not None


def _rules(count: int) -> Iterator[Rule]:
    """Rules of other principals, a third of them for prefixes, then the bench's own."""
    for number in range(count - 1):
        topic = Pattern(ResourceKind.TOPIC, f"of-{number}", is_prefix=number % 3 == 0)
        yield Rule(_name(number % PRINCIPALS), Effect.ALLOW, None, topic)
    yield Rule(USER, Effect.ALLOW, None, _TOPIC)


def _name(number: int) -> str:
    return f"principal-{number}"


def _rates(results: Results, plain: _Place, protected: _Place, seconds: float) -> None:
    """Large appends and reads, plain and with TLS: their rates, and their processor time."""
    batch = pa.record_batch({"value": values(ROWS)})
    for at in (plain, protected):
        at.log.create_topic(LARGE, schema=batch.schema)
    for what, measure in (("append", _append_for), ("read by the connection", _read_for)):
        rates: dict[_Place, list[float]] = {plain: [], protected: []}
        used: dict[_Place, list[float]] = {plain: [], protected: []}
        for turn in range(TURNS):
            for at in (plain, protected) if turn % 2 else (protected, plain):
                began, before = now(), at.processor_s()
                rows = measure(at, batch, seconds)
                rates[at].append(rows / (now() - began))
                used[at].append((at.processor_s() - before) / (rows / ROWS * batch.nbytes / 1e9))
        ratios = [
            ours / theirs for ours, theirs in zip(rates[protected], rates[plain], strict=True)
        ]
        name = f"{what} of {ROWS:,}-row batches, TLS"
        results.add(
            name,
            "rows/s",
            measured=median(rates[protected]),
            ceiling=median(rates[plain]),
            note=f"ceiling: plain; ratios {min(ratios):.2f} to {max(ratios):.2f}",
        )
        results.add(
            f"{name}: processor time of both sides, 1 GB",
            "s",
            measured=median(used[protected]),
            ceiling=median(used[plain]),
            note="ceiling: plain",
        )
    for at in (plain, protected):
        at.log.delete_topic(LARGE)


def _sockets(results: Results, server: TlsFiles, client: TlsFiles) -> None:
    """The limit of any program: sockets of Python, plain and with TLS, in turns."""
    contexts = server_context(server), client_context(client)
    rates: list[float] = []
    ratios: list[float] = []
    used: list[float] = []
    for _ in range(TURNS):
        plain, plain_s = _transfer(None)
        protected, protected_s = _transfer(contexts)
        rates.append(protected / 1e6)
        ratios.append(protected / plain)
        used.append((protected_s - plain_s) / TRANSFERRED * 1e9)
    results.add(
        "sockets, TLS",
        "MB/s",
        measured=median(rates),
        ceiling=median(rates) / median(ratios),
        note="ceiling: plain",
    )
    results.add("sockets, processor time that TLS adds to 1 GB", "s", measured=median(used))


def _transfer(contexts: tuple[ssl.SSLContext, ssl.SSLContext] | None) -> tuple[float, float]:
    """Send bytes to a thread. Return the bytes a second, and the processor time of both sides."""
    listener = socket.create_server(("127.0.0.1", 0))
    received = threading.Thread(target=_receive, args=(listener, contexts))
    received.start()
    with closing(socket.create_connection(listener.getsockname())) as plain:
        sock = contexts[1].wrap_socket(plain, server_hostname="localhost") if contexts else plain
        data = memoryview(secrets.token_bytes(TRANSFER_BYTES))
        began, before, sent = now(), time.process_time(), 0
        while sent < TRANSFERRED:
            sent += sock.send(data)
        sock.close()
        received.join()
    listener.close()
    return sent / (now() - began), time.process_time() - before


def _receive(
    listener: socket.socket, contexts: tuple[ssl.SSLContext, ssl.SSLContext] | None
) -> None:
    plain, _ = listener.accept()
    sock = contexts[0].wrap_socket(plain, server_side=True) if contexts else plain
    into = bytearray(TRANSFER_BYTES)
    with closing(sock):
        while sock.recv_into(into):
            pass


def _append_for(at: _Place, batch: pa.RecordBatch, seconds: float) -> int:
    """Append for this long. Return the number of rows."""
    with at.log.producer() as producer:
        began, sent = now(), 0
        while now() - began < seconds:
            producer.append(LARGE, batch, partition=0)
            sent += 1
        producer.flush()
    return sent * batch.num_rows


def _read_for(at: _Place, _: pa.RecordBatch, seconds: float) -> int:
    """Read for this long. Return the number of rows."""
    with at.log.consumer(LARGE, start="earliest") as consumer:
        start, rows, began = consumer.position(), 0, now()
        while now() - began < seconds:
            consumer.seek(start)
            for each in consumer.batches(until="latest"):
                rows += each.num_rows
                if now() - began >= seconds:
                    break
    return rows


def _calls(
    results: Results,
    what: str,
    plain: _Place,
    others: Mapping[str, _Place],
    make: Callable[[_Place], Callable[[], object]],
) -> None:
    """Calls to all brokers, one after another, in a random order for each round."""
    calls = [make(at) for at in (plain, *others.values())]
    took: list[list[float]] = [[] for _ in calls]
    chance, order = random.Random(1), list(range(len(calls)))
    for number in range(WARM + ROUNDS):
        chance.shuffle(order)  # none always comes after the same one
        for which in order:
            began = now()
            calls[which]()
            if number >= WARM:
                took[which].append((now() - began) * 1e3)
    for each in took:
        each.sort()
    for share, shown in ((0.5, "p50"), (0.99, "p99")):
        base, *found = (each[int(len(each) * share)] for each in took)
        for name, measured in zip(others, found, strict=True):
            results.add(
                f"{what}, {name}, {shown}",
                "ms",
                measured=measured,
                ceiling=base,
                note=f"ceiling: plain; {measured - base:+.3f} ms",
            )
