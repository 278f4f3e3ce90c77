"""Real etcd members on this machine, each a process that a test can pause, end and start again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from spark_stream.cluster.stores.etcd_client import EtcdClient
from spark_stream.errors import StorageFailure
from spark_stream.transport.tls import client_context
from tests.certificates import HERE, Files
from tests.support import free_port

_CACHED = Path(__file__).resolve().parents[1] / ".cache/etcd/usr/bin/etcd"
_STARTS = 3  # somebody else may take a port that was free


def etcd_binary() -> str | None:
    """Return the path of an etcd; None if ``scripts/ensure-etcd`` found none."""
    found = os.environ.get("ETCD") or shutil.which("etcd")
    return found or (str(_CACHED) if _CACHED.exists() else None)


needs_etcd = [
    pytest.mark.etcd,
    pytest.mark.skipif(etcd_binary() is None, reason="no etcd: run scripts/ensure-etcd"),
]


class Member:
    """One member. ``endpoint`` is where it serves clients."""

    def __init__(self, name: str, folder: Path, tls: Files | None = None) -> None:
        self.name = name
        self._tls = tls
        self.endpoint = f"127.0.0.1:{free_port()}"
        self.peer = f"http://127.0.0.1:{free_port()}"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, cluster: str) -> None:
        binary = etcd_binary()
        assert binary is not None
        client = f"{'https' if self._tls else 'http'}://{self.endpoint}"
        flags = {
            "name": self.name,
            "data-dir": str(self._folder / self.name),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": self.peer,
            "initial-advertise-peer-urls": self.peer,
            "initial-cluster": cluster,
            "unsafe-no-fsync": "true",
        }
        if self._tls is not None:
            files = self._tls.issue(self.name, *HERE)
            flags |= {"cert-file": str(files.cert), "key-file": str(files.key)}
            flags |= {"trusted-ca-file": self._tls.ca, "client-cert-auth": "true"}
        with (self._folder / f"{self.name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                [binary, *(f"--{name}={value}" for name, value in flags.items())],
                stdout=log,
                stderr=log,
            )

    @property
    def has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def tell(self, number: signal.Signals) -> None:
        """Send a signal, such as SIGSTOP and SIGCONT."""
        assert self._process is not None
        self._process.send_signal(number)

    def end(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
            self._process = None


class Etcd:
    """A cluster of members."""

    def __init__(self, members: list[Member], tls: Files | None = None) -> None:
        self.members = members
        self._tls = tls

    @property
    def endpoints(self) -> list[str]:
        return [each.endpoint for each in self.members]

    def start(self) -> None:
        cluster = ",".join(f"{each.name}={each.peer}" for each in self.members)
        for each in self.members:
            each.start(cluster)

    def client(
        self, timeout_s: float = 1.0, credential: tuple[str, str] | None = None
    ) -> EtcdClient:
        if self._tls is None:
            return EtcdClient(self.endpoints, timeout_s, None, credential)
        context = client_context(self._tls.issue("client", "isolog"))
        return EtcdClient(self.endpoints, timeout_s, lambda: context, credential)

    def url(self, name: str) -> str:
        """What a broker of the cluster ``name`` is given."""
        return f"etcd://{','.join(self.endpoints)}/{name}"

    def restore(self) -> None:
        """Resume members that are paused, and start those that have ended."""
        cluster = ",".join(f"{each.name}={each.peer}" for each in self.members)
        for each in self.members:
            if each.has_ended:
                each.start(cluster)
            else:
                each.tell(signal.SIGCONT)

    def leader(self) -> Member:
        """Return the member that leads."""
        client = self.client(5.0)
        try:
            status = client.read("/v3/maintenance/status", {})
        finally:
            client.close()
        listed = {}
        for each in self.members:
            alone = EtcdClient([each.endpoint], 5.0)
            listed[alone.read("/v3/maintenance/status", {})["header"]["member_id"]] = each
            alone.close()
        return listed[status["leader"]]


@contextmanager
def running_etcd(folder: Path, members: int = 1, tls: Files | None = None) -> Iterator[Etcd]:
    """Start a cluster in a folder, and end it. ``tls``: it takes clients with certificates only."""
    for attempt in range(_STARTS):
        place = folder / str(attempt)
        place.mkdir()
        found = Etcd([Member(f"m{number}", place, tls) for number in range(members)], tls)
        try:
            found.start()
            if _serves(found):
                yield found
                return
        finally:
            for each in found.members:
                each.end()
    raise AssertionError(f"etcd does not start: see {folder}")


def _serves(etcd: Etcd) -> bool:
    until = time.monotonic() + 60
    client = etcd.client()
    try:
        while time.monotonic() < until and not any(each.has_ended for each in etcd.members):
            with suppress(StorageFailure):
                client.write("/v3/kv/range", {"key": "YQ=="})
                return True
            time.sleep(0.05)
        return False
    finally:
        client.close()
