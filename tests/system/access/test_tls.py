"""TLS at both listeners and the Flight facade: admission, errors, and rotation."""

from __future__ import annotations

import datetime
import os
import shutil
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pyarrow.flight as fl
import pytest

import isolog
from isolog.errors import BrokerUnavailable, InvalidOption, IsologError, TlsFailed
from isolog.testing import LocalCluster
from spark_stream.transport.client import ClientChannel
from spark_stream.transport.streams import CallFailed
from spark_stream.transport.tls import TlsFiles, client_context
from spark_stream.wire.messages import REPLICATE, RUN_STEPS
from spark_stream.wire.replication_messages import OpenReplication
from spark_stream.wire.stream_messages import Fetch, FetchRange
from tests.certificates import HERE, Files, conf_of, serial_of
from tests.flight_calls import SERVED
from tests.support import BrokerProcess, eventually, values

SOON_S = 15.0  # less than the timeout of 20 s for an answer


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("certs"))


@pytest.fixture(scope="module")
def secure(files: Files, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with TLS at the client listener."""
    pair = files.issue("broker", *HERE)
    folder = tmp_path_factory.mktemp("secure")
    with BrokerProcess(folder / "log", conf=conf_of(pair)) as broker:
        yield broker


def refusal_of(connect: Callable[[], object]) -> IsologError:
    """Return the error of a connection that is refused before its timeout."""
    begun = time.monotonic()
    with pytest.raises((TlsFailed, BrokerUnavailable)) as caught:
        connect()
    assert time.monotonic() - begun < SOON_S
    return caught.value


def test_client_that_trusts_the_authority_writes_and_reads(secure: BrokerProcess, files: Files):
    with isolog.connect(secure.address, tls_ca=files.ca) as log:
        log.create_topic("t")
        with log.producer() as producer:
            producer.append("t", values("a", "b"))
        assert log.read("t")["value"].to_pylist() == [b"a", b"b"]
        with log.consumer("t") as consumer:
            assert [record.value for record in consumer.poll(20)] == [b"a", b"b"]


def test_tls_options_are_read_from_the_environment(
    secure: BrokerProcess, files: Files, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("ISOLOG_TLS_CA", files.ca)
    with isolog.connect(secure.address) as log:
        assert log.status().address == secure.address


def test_plain_client_gets_an_error_that_names_tls(secure: BrokerProcess):
    error = refusal_of(lambda: isolog.connect(secure.address, timeout=20))
    assert isinstance(error, TlsFailed)
    assert "speaks TLS" in error.message
    assert "tls.ca" in error.hint


def test_tls_client_of_a_plain_broker_gets_an_error_that_names_tls(
    shared: BrokerProcess, files: Files
):
    error = refusal_of(lambda: isolog.connect(shared.address, tls_ca=files.ca, timeout=20))
    assert isinstance(error, TlsFailed)
    assert "does not use TLS" in error.message


def test_connection_reset_in_the_handshake_logs_no_traceback(secure: BrokerProcess, files: Files):
    host, _, port = secure.address.rpartition(":")
    for _ in range(50):
        plain = socket.create_connection((host, int(port)))
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        plain.send(b"\x16")
        plain.close()
    with isolog.connect(secure.address, tls_ca=files.ca):
        pass
    assert "Traceback" not in secure.log_text()


def test_principal_of_a_certificate_is_its_common_name_not_its_email(files: Files, tmp_path: Path):
    made = files.issue("mail", "mail@example.org", common_name="carol")
    conf = "authentication = true\n" + conf_of(files.issue("b", *HERE), ca=files.ca)
    shown = {"tls_ca": files.ca, "tls_cert": made.cert, "tls_key": made.key}
    with (
        BrokerProcess(tmp_path / "log", conf=conf) as broker,
        isolog.connect(broker.address, **shown) as log,
    ):
        assert log.status().principal == "carol"


def test_certificate_of_another_authority_is_refused(secure: BrokerProcess, tmp_path: Path):
    other = Files(tmp_path)
    error = refusal_of(lambda: isolog.connect(secure.address, tls_ca=other.ca, timeout=20))
    assert "certificate is refused" in error.message
    assert "tls.ca" in error.hint


@pytest.mark.parametrize(
    ("names", "how", "problem", "hint"),
    [
        (
            ("elsewhere.example",),
            {},
            "not valid for '127.0.0.1'",
            "name that is in",
        ),
        (
            HERE,
            {"not_after": datetime.datetime(2020, 1, 2, tzinfo=datetime.UTC)},
            "expired",
            "Renew",
        ),
    ],
    ids=["another host's", "expired"],
)
def test_certificate_for_another_host_or_expired_is_refused(
    files: Files, tmp_path: Path, names, how, problem: str, hint: str
):
    pair = Files(tmp_path).issue("broker", *names, by=files.authority, **how)
    with BrokerProcess(tmp_path / "log", conf=conf_of(pair)) as broker:
        error = refusal_of(lambda: isolog.connect(broker.address, tls_ca=files.ca, timeout=20))
    assert problem in error.message
    assert hint in error.hint


def test_broker_may_require_client_certificates(files: Files, tmp_path: Path):
    pair, mine = files.issue("asking", *HERE), files.issue("client", "etl-job")
    conf = conf_of(pair, ca=files.ca) + "require_client_cert = true\n"
    with BrokerProcess(tmp_path / "log", conf=conf) as broker:
        error = refusal_of(lambda: isolog.connect(broker.address, tls_ca=files.ca, timeout=20))
        assert "requires a client certificate" in error.message
        stranger = Files(tmp_path).issue("client", "etl-job")
        given = {"tls_ca": files.ca, "tls_cert": stranger.cert, "tls_key": stranger.key}
        error = refusal_of(lambda: isolog.connect(broker.address, timeout=20, **given))
        assert "unknown ca" in error.message
        given = {"tls_ca": files.ca, "tls_cert": mine.cert, "tls_key": mine.key}
        with isolog.connect(broker.address, **given) as log:
            log.create_topic("t")


def test_certificates_rotate_under_open_connections(files: Files, tmp_path: Path):
    pair = files.issue("rotating", *HERE)
    with (
        BrokerProcess(tmp_path / "log", conf=conf_of(pair)) as broker,
        isolog.connect(broker.address, tls_ca=files.ca) as log,
    ):
        log.create_topic("t")
        before = serial_of(broker.address, files.ca)
        other_key = files.issue("other", *HERE).key
        shutil.copy(str(other_key), str(pair.key))
        eventually(lambda: "TLS files cannot be used" in broker.log_text())
        assert serial_of(broker.address, files.ca) == before
        files.issue("rotating", *HERE)
        eventually(lambda: serial_of(broker.address, files.ca) != before)
        with log.producer() as producer:
            producer.append("t", values("after")).result(20)


def test_unusable_certificate_is_not_loaded(files: Files, tmp_path: Path):
    """The client certificate has expired, and the peer certificate names another broker."""
    pair, peer = files.issue("clients", *HERE), files.issue("peers", *HERE, "b1")
    conf = 'id = "b1"\n' + conf_of(pair) + conf_of(peer, "peer_tls", ca=files.ca)
    with BrokerProcess(tmp_path / "log", conf=conf) as broker:
        before = serial_of(broker.address, files.ca)
        over = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
        files.issue("clients", *HERE, not_after=over)
        eventually(lambda: "certificate has expired" in broker.log_text())
        files.issue("peers", *HERE, "b7")
        eventually(
            lambda: (
                "peer_tls.cert: the certificate is for localhost, b7, but this is broker b1"
                in broker.log_text()
            )
        )
        time.sleep(2.5)  # two more checks of the files, which log no further line
        assert serial_of(broker.address, files.ca) == before
        assert broker.log_text().count("TLS files cannot be used") == 2
        files.issue("clients", *HERE)
        eventually(lambda: serial_of(broker.address, files.ca) != before)


def has_flights(client: fl.FlightClient) -> bool:
    """Return whether flights are listed. A server that restarts is unavailable and lists none."""
    try:
        return bool(list(client.list_flights()))
    except fl.FlightUnavailableError:
        return False


def test_stalled_flight_reader_does_not_block_rotation(files: Files, tmp_path: Path):
    pair = files.issue("read", *HERE)
    conf = SERVED + conf_of(pair)
    with (
        BrokerProcess(tmp_path / "log", conf=conf) as broker,
        isolog.connect(broker.address, tls_ca=files.ca) as log,
    ):
        log.create_topic("t")
        with log.producer() as producer:
            for _ in range(24):
                producer.append("t", values(os.urandom(1 << 20))).result(20)
        where, root = log.status().flight, Path(files.ca).read_bytes()

        def client() -> fl.FlightClient:
            alone = [("grpc.use_local_subchannel_pool", 1)]
            return fl.FlightClient(
                f"grpc+tls://{where}", tls_root_certs=root, generic_options=alone
            )

        fetch = Fetch(ranges=(FetchRange(topic="t", partition=0, start=0),))
        with client() as slow, client() as other:
            reader = slow.do_get(fl.Ticket(fetch.to_bytes()))
            reader.read_chunk()
            for _ in range(2):
                before = serial_of(broker.address, files.ca)
                files.issue("read", *HERE)
                eventually(lambda before=before: serial_of(broker.address, files.ca) != before)
                eventually(lambda: has_flights(client()))
            assert [each.descriptor for each in other.list_flights()]
            reader.cancel()


def test_brokers_replicate_with_peer_certificates(files: Files, monkeypatch: pytest.MonkeyPatch):
    pair = files.issue("peers", *HERE, "1", "2")
    given = {"cert": pair.cert, "key": pair.key}
    monkeypatch.setenv("ISOLOG_TLS_CA", files.ca)
    conf = {"tls": given, "peer_tls": given | {"ca": files.ca}}
    with LocalCluster(2, conf=conf) as cluster, cluster.connect() as log:
        log.create_topic("t", replication_factor=2, config={"min.insync.replicas": 2})
        with log.producer(isolation="read_committed") as producer:
            producer.append("t", values("a")).result(60)
        cluster.kill(cluster.leader("t"))
        eventually(lambda: log.read("t")["value"].to_pylist() == [b"a"])


@pytest.mark.parametrize("method", [RUN_STEPS, REPLICATE])
def test_client_certificate_is_refused_at_the_peer_listener(
    files: Files, tmp_path: Path, method: str
):
    pair = files.issue("door", *HERE, "b1")
    conf = 'id = "b1"\n' + conf_of(pair, "peer_tls", ca=files.ca)
    client = files.issue("client", "etl-job")
    with BrokerProcess(tmp_path / "log", conf=conf) as broker:
        nobody = TlsFiles(ca=files.ca)
        with pytest.raises(TlsFailed, match="requires a client certificate"):
            ClientChannel(broker.peer_address, timeout_s=20, tls=client_context(nobody))
        channel = ClientChannel(broker.peer_address, timeout_s=20, tls=client_context(client))
        opened = OpenReplication(stream="s", follower="b2", proof="0" * 64, window_bytes=1 << 20)
        body = opened.to_bytes()
        if method == RUN_STEPS:
            body = msgspec.msgpack.encode(
                {"caller": "b2", "proof": "0" * 64, "nonce": "n", "steps": []}
            )
        with pytest.raises(CallFailed) as caught:
            channel.open(method, b"", body).receive(20)
        assert b"its certificate names etl-job" in caught.value.error
        channel.close()


def test_flight_uses_tls_and_reloads_certificates(files: Files, tmp_path: Path):
    conf = SERVED + conf_of(files.issue("flight", *HERE))
    with BrokerProcess(tmp_path / "log", conf=conf) as broker:
        with isolog.connect(broker.address, tls_ca=files.ca) as log:
            log.create_topic("t")
            where = log.status().flight
        trusted = Path(files.ca).read_bytes()

        def listed() -> list[str]:
            with fl.connect(f"grpc+tls://{where}", tls_root_certs=trusted) as client:
                return [each.descriptor.path[0].decode() for each in client.list_flights()]

        assert listed() == ["t"]
        before = serial_of(where, files.ca)
        files.issue("flight", *HERE)
        eventually(lambda: "restarted the Flight server with the new" in broker.log_text())
        assert serial_of(where, files.ca) != before
        assert listed() == ["t"]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"tls_ca": "/nowhere/ca.pem"}, "No such file"),
        ({"tls_ca": "-----BEGIN CERTIFICATE-----"}, "not its text"),
        ({"tls_key": "key.pem"}, "No such file"),
        ({"tls_ca": ""}, "takes the path of a file"),
        ({"tls": False, "tls_ca": "ca.pem"}, "tls is false"),
        ({"tls": "maybe"}, "true or false"),
    ],
)
def test_invalid_tls_options_are_refused(secure: BrokerProcess, given, problem: str):
    with pytest.raises(InvalidOption, match=problem):
        isolog.connect(secure.address, **given)


def test_broker_with_a_certificate_of_another_does_not_start(files: Files, tmp_path: Path):
    pair = files.issue("two", *HERE, "2")
    conf = 'id = "3"\n' + conf_of(pair, "peer_tls", ca=str(pair.ca))
    with (
        pytest.raises(Exception, match="this is broker 3"),
        BrokerProcess(tmp_path / "l", conf=conf),
    ):
        pass
