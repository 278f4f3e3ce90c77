"""Real floods of small frames, from separate processes, on both listeners of a cluster.

The tests need processes, because the fault was in the loop of a real broker.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

import isolog
from isolog.testing import LocalCluster
from spark_stream.protocol.connection import FRAMES_OF_STRANGER
from spark_stream.protocol.frames import FrameKind, FrameReader, RawFrame
from spark_stream.transport.client import ClientChannel, connected
from spark_stream.transport.tls import TlsFiles, client_context
from tests.certificates import Files
from tests.floods import HELLO, KINDS, OPENS, Target, flooded, opens
from tests.secure_brokers import PASSWORD, secure_brokers
from tests.support import BrokerProcess, eventually

APPENDS = 20
CLOSED = "TOO_MANY_FRAMES"


def append_measured(log: isolog.Log, count: int = APPENDS) -> list[float]:
    """Append one by one, each acknowledged by all replicas. Return the latencies in ms."""
    took = []
    with log.producer(isolation="read_committed") as producer:
        for number in range(count):
            began = time.perf_counter()
            producer.append("t", pa.record_batch({"n": [number]}), partition=0).result(60)
            took.append((time.perf_counter() - began) * 1000)
    return took


def append_under_floods(log: isolog.Log, targets: Sequence[Target]) -> list[Counter[str]]:
    """Append during the floods. Print the latency, and return the counts of each flood."""
    with flooded(targets) as counts:
        took = append_measured(log)
    print(f"appends: median {statistics.median(took):.1f} ms, longest {max(took):.1f} ms; {counts}")
    return counts


def check_connected(logs: Sequence[str]) -> None:
    """Check that no follower has lost its leader."""
    for text in logs:
        assert "following broker" not in text


def test_peer_with_many_first_requests_is_not_limited_as_a_stranger(tmp_path: Path) -> None:
    """They arrive in one TLS record. The listener authenticates the broker before it reads them."""
    files = Files(tmp_path)
    with secure_brokers(tmp_path, files) as brokers:
        peer = client_context(files.issue("peer", "2"))
        received: list[RawFrame] = []
        reader = FrameReader(1 << 20, 1 << 20)
        with connected(brokers[0].peer_address, time.monotonic() + 20, peer) as sock:

            def receive_until(count: int) -> None:
                while len(received) < count:
                    data = sock.recv(1 << 16)
                    assert data, received
                    received.extend(reader.receive(data))

            sock.sendall(HELLO)
            receive_until(1)
            sock.sendall(next(opens(2 * FRAMES_OF_STRANGER)))
            receive_until(1 + 2 * FRAMES_OF_STRANGER)
        assert {each.kind for each in received[1:]} == {FrameKind.ERROR}


@pytest.mark.full  # one stranger: the test above
@pytest.mark.parametrize(
    "tls", [True, pytest.param(False, marks=pytest.mark.full)], ids=["tls", "plain"]
)
def test_floods_of_strangers_are_closed_while_the_cluster_continues(
    tls: bool, tmp_path: Path
) -> None:
    files = Files(tmp_path)
    stranger = files.issue("stranger", "stranger")  # of the same authority, but not of a broker
    with secure_brokers(tmp_path, files, tls=tls) as brokers, ExitStack() as stack:
        trusting = TlsFiles(ca=files.ca) if tls else None
        log = isolog.connect(
            ",".join(each.address for each in brokers),
            user="root",
            password=PASSWORD,
            timeout=60,
            **({"tls_ca": files.ca} if tls else {}),
        )
        stack.enter_context(log)
        log.create_topic("t", 1, 3, schema="n BIGINT")
        append_measured(log, 1)
        eventually(lambda: len(log.describe("t").partitions[0].isr) == 3)
        leader = next(each for each in brokers if _leads(log, each))
        silent = ClientChannel(
            leader.address, timeout_s=20, tls=None if trusting is None else client_context(trusting)
        )
        stack.callback(silent.close)
        targets = [
            Target(leader.address, "ping", trusting),
            Target(leader.address, "cancel", trusting),
            Target(leader.peer_address, "ping", stranger),
            Target(leader.peer_address, "ping"),  # without TLS
        ]
        with flooded(targets) as counts:
            took = append_measured(log)
            eventually(lambda: silent.is_lost, 60)  # after 10 s without authentication
            took += append_measured(log)
        print(f"appends: median {statistics.median(took):.1f} ms, longest {max(took):.1f} ms")
        print(counts)
        for number, code in enumerate((CLOSED, CLOSED, CLOSED, "TLS_REQUIRED")):
            assert counts[number][code] >= 1
            assert _others(counts[number], code) <= 1  # the connection open at the end
        assert f"with {CLOSED}" in leader.log_text()
        assert "frames without authentication" in leader.log_text()
        assert leader.log_text().count(f"with {CLOSED}") < 20  # not one line for each connection
        check_connected([each.log_text() for each in brokers])


def _leads(log: isolog.Log, broker: BrokerProcess) -> bool:
    leader = log.describe("t").partitions[0].leader
    return Path(broker.directory).name == leader


def _others(counts: Counter[str], code: str) -> int:
    return counts["connections"] - counts[code]


@pytest.mark.full  # the test above has strangers
def test_floods_of_trusted_peers_are_closed_and_requests_share_the_broker() -> None:
    with LocalCluster(3, cuttable=False) as cluster, cluster.connect(timeout=60) as log:
        log.create_topic("t", 1, 3, schema="n BIGINT", config={"min.insync.replicas": 2})
        append_measured(log, 1)
        leader = cluster.broker(cluster.leader("t"))
        kinds = [*KINDS, OPENS]
        counts = append_under_floods(
            log,
            [
                *(Target(leader.address, kind) for kind in kinds),
                *(Target(leader.peer_address, kind) for kind in ("ping", "cancel")),
            ],
        )
        codes = {"hello": "SECOND_HELLO", OPENS: "open"}
        for kind, found in zip([*kinds, "ping", "cancel"], counts, strict=True):
            code = codes.get(kind, CLOSED)
            assert found[code] >= 1, (kind, found)
            assert _others(found, code) <= 1, (kind, found)
        check_connected([each.log_text() for each in cluster.brokers.values()])
