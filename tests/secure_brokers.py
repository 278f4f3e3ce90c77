"""Brokers with authentication. The user ``root`` has all permissions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import isolog
from spark_stream.cli.commands.access import _add_to_store
from spark_stream.client.administration import AccessClient
from spark_stream.client.connecting.access import access_of
from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.cluster.stores.backends import SqliteBackend
from tests.certificates import HERE, Files, conf_of
from tests.flight_calls import SERVED
from tests.support import BrokerProcess

PASSWORD = "correct horse battery"


@contextlib.contextmanager
def asking_broker(folder: Path, conf: str = "") -> Iterator[BrokerProcess]:
    """Start a broker, and add the first user to its store like `isolog user add --metadata`."""
    conf = f'authentication = true\nsuper_users = ["root"]\n{conf}'
    with BrokerProcess(folder / "log", conf=conf) as broker:
        _add_to_store(SqliteBackend(broker.directory / "metadata.sqlite"), "root", PASSWORD)
        yield broker


@contextlib.contextmanager
def secure_brokers(
    folder: Path, files: Files, *, tls: bool = True
) -> Iterator[list[BrokerProcess]]:
    """Start three brokers on one store, each with a certificate for clients and peers.

    Without ``tls`` clients connect in plain text, and still have to authenticate.
    """
    store = folder / "metadata.sqlite"
    with contextlib.ExitStack() as stack:
        brokers = []
        for name in ("1", "2", "3"):
            pair = files.issue(name, name, *HERE)
            conf = (
                f'id = "{name}"\nmetadata = "{store}"\npeer_listen = "127.0.0.1:0"\n'
                'authentication = true\nsuper_users = ["root"]\n'
                f"{conf_of(pair) if tls else ''}{conf_of(pair, 'peer_tls', ca=files.ca)}"
                '[topic]\n"min.insync.replicas" = 2\n'
            )
            brokers.append(stack.enter_context(BrokerProcess(folder / name, conf=conf)))
        _add_to_store(SqliteBackend(store), "root", PASSWORD)
        yield brokers


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker of the module, which also serves Flight."""
    with asking_broker(tmp_path_factory.mktemp("asking"), SERVED) as broker:
        yield broker


@contextlib.contextmanager
def client_of(broker: BrokerProcess, **options: str) -> Iterator[AccessClient]:
    given = options or {"user": "root", "password": PASSWORD}
    connection = ClusterConnection(broker.address, access=access_of(given, {}))
    try:
        yield AccessClient(connection)
    finally:
        connection.close()


@pytest.fixture
def admin(asking: BrokerProcess) -> Iterator[AccessClient]:
    """A client of ``root``, whose rules, users and tokens are removed after the test."""
    with client_of(asking) as client:
        yield client
        for rule in client.rules():
            client.remove_rule(rule.effect, rule.principal, rule.operation, rule.resource)
        for user in client.users():
            if user != "root":
                client.remove_user(user)
        for token in client.tokens():
            client.revoke_token(token.id)


def as_(broker: BrokerProcess, user: str, **options: str) -> isolog.Log:
    """Connect as a user."""
    return isolog.connect(broker.address, user=user, password=PASSWORD, timeout=10, **options)
