"""``isolog console`` as a process: addresses, messages, and its event stream."""

from __future__ import annotations

import json
import socket
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from spark_stream.extras import install_hint
from tests.certificates import HERE, Files
from tests.cli.conftest import Call, call
from tests.console.conftest import started_console
from tests.secure_brokers import PASSWORD, asking_broker, client_of
from tests.support import NUMBERS, BrokerProcess, log, numbers, shared, topic

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
__all__ = ["call", "log", "shared", "topic"]


def events(
    address: str, query: str, cookies: httpx.Cookies | None = None
) -> Iterator[tuple[str, Any]]:
    """Yield the events of the stream like a browser."""
    with (
        httpx.Client(timeout=60, cookies=cookies) as client,
        client.stream("GET", f"{address}/api/stream?{query}") as answer,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream")
        name = ""
        for line in answer.iter_lines():
            field, _, value = line.partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                yield name, json.loads(value)


def test_stream_sends_changes_until_sigint(shared, log, topic, tmp_path):
    log.create_topic(topic, 2, schema=NUMBERS)
    with started_console(tmp_path, "--bootstrap", shared.address) as address:
        stream = events(address, f"parts=cluster,topics,consumers,transactions&topic={topic}")
        seen: dict[str, Any] = {}
        while seen.keys() < {"cluster", "topics", "consumers", "transactions", "topic"}:
            name, part = next(stream)
            assert part["error"] is None
            seen[name] = part["value"]
        assert seen["topic"]["columns"][0] == {
            "name": "n", "type": "bigint", "nullable": True, "added": False,
        }  # fmt: skip
        assert seen["cluster"]["brokers"][0]["status"]["disk_total"] > 0
        with log.producer() as producer:
            producer.append(topic, numbers(0, 7), partition=1).result()
        for name, part in stream:
            live = part["value"]["partitions"][1]["live"] if name == "topic" else None
            if live is not None and live["log_end"] == 7:
                break
        assert live["high_watermark"] == live["last_stable"] == 7
        gone = events(address, "topic=nowhere")
        name, part = next(gone)
        assert (name, part["value"], part["error"]["code"]) == ("topic", None, "UNKNOWN_TOPIC")
    # The process has ended without errors despite an open stream: `started_console` checks.


@pytest.mark.rule("the history of a secured cluster", "console/board.py", "console/sessions.py")
def test_history_of_a_secured_cluster_is_for_those_who_may_describe_it(tmp_path, call):
    """A token of the console takes the samples. Without one there is no file."""
    token, kept = tmp_path / "token", tmp_path / "history"
    with asking_broker(tmp_path) as broker:
        with client_of(broker) as admin:
            for name in ("monitor", "alice"):
                admin.add_user(name, PASSWORD)
                admin.add_rule("allow", name, "describe", "topic:*")
            admin.add_rule("allow", "monitor", "describe", "cluster")
            token.write_text(admin.create_token("monitor").token)
        place = ("--bootstrap", broker.address, "--history", str(kept))
        refused = call("console", *place, "--listen", "127.0.0.1:0")
        assert (refused.code, "--history needs a token" in refused.err) == (2, True)
        given = (*place, "--history-token-file", str(token))
        with started_console(tmp_path, *given) as address:
            seen = history_of(address, "root")
            assert [each for each in seen["figures"]["alive"] if each is not None] == [1]
            assert history_of(address, "alice") is None
        assert len(kept.read_bytes()) > 1_000_000
        with started_console(tmp_path, *place[:2]) as address:  # samples of the session
            assert history_of(address, "root")["figures"]["alive"][-1] == 1


def history_of(address: str, user: str) -> Any:
    """Log in, and return the history, None if all parts were polled without permission for it."""
    with httpx.Client(timeout=60, headers={"x-isolog-console": "1"}) as client:
        body = {"user": user, "password": PASSWORD}
        assert client.post(f"{address}/api/login", json=body).status_code == 200
        for name, part in events(address, "parts=history,problems", client.cookies):
            if name == "history":
                return part["value"]
            if name == "problems" and "may not" in part["value"]["unjudged"].get("cluster", ""):
                return None
    raise AssertionError("the stream ended")


def test_console_serves_over_tls(shared, tmp_path):
    files = Files(tmp_path)
    pair = files.issue("console", *HERE)
    arguments = ("--bootstrap", shared.address, "--tls-cert", pair.cert, "--tls-key", pair.key)
    with started_console(tmp_path, *arguments) as address:
        assert address.startswith("https://127.0.0.1:")
        trusted = ssl.create_default_context(cafile=files.ca)
        with httpx.Client(verify=trusted) as client:
            assert client.get(f"{address}/api/session").json()["is_open"]


def test_invalid_server_options_are_errors_of_one_line(shared: BrokerProcess, call: Call, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        busy = f"127.0.0.1:{taken.getsockname()[1]}"
        for code, listen, problem in (
            (1, busy, f"cannot listen on {busy}"),
            (2, "8080", "--listen takes HOST:PORT"),
            (2, "nowhere.invalid:0", "cannot listen on nowhere.invalid:0"),
        ):
            found = call("console", "--bootstrap", shared.address, "--listen", listen)
            assert (found.code, found.out) == (code, ""), found.err
            assert problem in found.err
            assert found.err.startswith("error: ")
            assert found.err.count("\n") == 1
    empty = tmp_path / "empty.pem"
    empty.touch()
    alone = call("console", "--bootstrap", shared.address, "--tls-cert", str(empty))
    assert (alone.code, "go together" in alone.err) == (2, True)
    both = ("--tls-cert", str(empty), "--tls-key", str(empty))
    wrong = call("console", "--bootstrap", shared.address, "--listen", "127.0.0.1:0", *both)
    assert (wrong.code, "is unusable" in wrong.err) == (2, True)
    away = call("console", "--bootstrap", "127.0.0.1:1", "--listen", "127.0.0.1:0")
    assert away.code == 1
    assert "127.0.0.1:1" in away.err


def test_console_of_a_missing_directory_creates_no_log(call: Call, tmp_path: Path) -> None:
    found = call("console", "--path", str(tmp_path / "wrong"), "--listen", "127.0.0.1:0")
    assert (found.code, found.out) == (1, "")
    assert "there is no log" in found.err
    assert list(tmp_path.glob("wrong*")) == []


def test_missing_extra_is_an_error_with_the_install_command(call: Call, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("spark_stream.console")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    found = call("console", "--bootstrap", "127.0.0.1:1")
    assert found.code == 1
    assert found.err == (
        f"error: the console needs uvicorn, which is not installed ({install_hint('console')})\n"
    )


def test_listening_on_other_addresses_prints_warnings(shared: BrokerProcess, tmp_path: Path):
    with started_console(tmp_path, "--bootstrap", shared.address, "--listen", "0.0.0.0:0"):
        pass
    said = (tmp_path / "console.stderr").read_text()
    assert "give --tls-cert and --tls-key" in said
    assert "the cluster has no authentication" in said
