"""Real members of etcd on this machine for tests, which can kill, pause and restart them.

They store the metadata of a cluster: ``LocalCluster(conf={"metadata": etcd.url("name")})``. All
files are in a temporary folder, which is removed at the end of the ``with`` block. The members end
with this process, even if it is killed.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Final, Self

from spark_stream.cluster.stores.etcd_client import EtcdClient, encoded
from spark_stream.errors import (
    InvalidOption,
    MetadataRefused,
    MetadataUnavailable,
    StorageFailure,
)
from spark_stream.testing.guard import kill_with_this_process
from spark_stream.testing.local_cluster import HERE, ProcessPlace, pause_process
from spark_stream.transport.tls import TlsFiles, client_context
from spark_stream.wire.addresses import joined

VARIABLE: Final = "ETCD"
"""The environment variable with the path of etcd, if it is not on PATH."""
_START_S: Final = 60.0
_STARTS: Final = 3  # another process may take a port that was free
_STATUS: Final = "/v3/maintenance/status"
_ALARM: Final = "/v3/maintenance/alarm"
_MAINTENANCE_S: Final = 10.0
_FILLER: Final = "filler/"
_FILLER_END: Final = "filler0"  # the first key after all those with the prefix
_FILLER_BYTES: Final = 1 << 20


def etcd_binary() -> str | None:
    """Return the path of etcd from the variable ETCD or from PATH, None if there is none."""
    return os.environ.get(VARIABLE) or shutil.which("etcd")


class EtcdMember:
    """A member of a :class:`LocalEtcd`.

    Attributes:
        endpoint: Its address for clients, ``host:port``.
    """

    def __init__(
        self, name: str, folder: Path, tls: TlsFiles | None = None, place: ProcessPlace = HERE
    ) -> None:
        self.name = name
        self._place = place
        self.endpoint = joined(place.host, _free_port())
        self.peer = f"http://{joined(place.host, _free_port())}"
        self._folder = folder
        self.data = folder / name
        """The directory of its data."""
        self._tls = tls
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, binary: str, cluster: str, quota_bytes: int | None = None) -> None:
        """Start its process. ``cluster``: all members, as etcd's ``--initial-cluster``.

        ``quota_bytes``: the maximum size of its database, at which etcd refuses changes.
        """
        client = f"http{'' if self._tls is None else 's'}://{self.endpoint}"
        flags = {
            "name": self.name,
            "data-dir": str(self.data),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": self.peer,
            "initial-advertise-peer-urls": self.peer,
            "initial-cluster": cluster,
            "auto-compaction-mode": "periodic",
            "auto-compaction-retention": "1m",
            "unsafe-no-fsync": "true",
        }
        if quota_bytes is not None:
            flags |= {"quota-backend-bytes": str(quota_bytes)}
        if self._tls is not None:
            flags |= {"cert-file": str(self._tls.cert), "key-file": str(self._tls.key)}
            flags |= {"trusted-ca-file": str(self._tls.ca), "client-cert-auth": "true"}
        with (self._folder / f"{self.name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *self._place.prefix,
                    binary,
                    *(f"--{name}={value}" for name, value in flags.items()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        kill_with_this_process(self._process.pid)

    @property
    def alive(self) -> bool:
        """Whether its process runs or is paused."""
        return self._process is not None and self._process.poll() is None

    def pause(self) -> None:
        """Pause its process (SIGSTOP), and wait until it has stopped."""
        if self._process is not None:
            pause_process(self._process.pid)

    def resume(self) -> None:
        """Resume its paused process."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill its process. Its data remains."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)


class LocalEtcd:
    """A cluster of etcd members on this machine. It needs the program ``etcd``.

    Attributes:
        members: The members, in their order.
    """

    def __init__(
        self,
        members: int = 3,
        folder: Path | None = None,
        certificates: Callable[[str], TlsFiles] | None = None,
        places: Sequence[ProcessPlace] = (),
        quota_bytes: int | None = None,
    ) -> None:
        """Start the members.

        Args:
            members: The number of members.
            folder: The folder of their files, by default a temporary one that :meth:`close`
                removes.
            certificates: A function from the name of a member, or ``client``, to its TLS files.
                Members then accept only clients with a certificate.
            places: The place where each member runs, by default this machine.
            quota_bytes: The size of the database at which etcd accepts no more changes.

        Raises:
            InvalidOption: There is no etcd on this machine, or it does not start.
        """
        binary = etcd_binary()
        if binary is None:
            raise InvalidOption(
                "etcd is not on PATH",
                hint=f"Install it (Debian: etcd-server), or set {VARIABLE} to its path.",
            )
        self._binary = binary
        self._temporary = folder is None
        self._folder = Path(tempfile.mkdtemp(prefix="etcd-")) if folder is None else folder
        self._certificates = certificates
        self._quota_bytes = quota_bytes
        self.members: list[EtcdMember] = []
        for attempt in range(_STARTS):
            files = self._folder / str(attempt)
            files.mkdir()
            self.members = []
            for number, place in enumerate([*places, *[HERE] * members][:members], 1):
                tls = certificates(f"m{number}") if certificates else None
                self.members.append(EtcdMember(f"m{number}", files, tls, place))
            self.restore()
            if self._serves():
                return
            self._kill_all()
        self.close()
        raise InvalidOption("etcd does not start", hint=f"See the logs in {self._folder}.")

    @property
    def endpoints(self) -> list[str]:
        """The addresses of the members for clients."""
        return [each.endpoint for each in self.members]

    def url(self, name: str) -> str:
        """Return the setting ``metadata`` for brokers of the isolog cluster ``name``."""
        return f"etcd://{','.join(self.endpoints)}/{name}"

    def leader(self) -> EtcdMember:
        """Return the leader of the members. Wait until there is a leader.

        Raises:
            StorageFailure: there is no leader for a minute.
        """
        until = time.monotonic() + _START_S
        while time.monotonic() < until:
            for each in self.members:
                with closing(self.client(1.0, only=each)) as alone, suppress(StorageFailure):
                    status = alone.write(_STATUS, {})
                    if status["header"]["member_id"] == status.get("leader"):
                        return each
            time.sleep(0.05)
        raise StorageFailure("etcd has no leader")

    def restore(self) -> None:
        """Resume paused members, and start members that have ended."""
        cluster = ",".join(f"{each.name}={each.peer}" for each in self.members)
        for each in self.members:
            if each.alive:
                each.resume()
            else:
                each.start(self._binary, cluster, self._quota_bytes)

    def fill(self) -> None:
        """Use up the quota, so that etcd refuses changes (alarm NOSPACE)."""
        value = encoded(os.urandom(_FILLER_BYTES))
        with closing(self.client(_MAINTENANCE_S)) as client:
            for number in itertools.count():
                key = encoded(f"{_FILLER}{number}".encode())
                try:
                    client.write("/v3/kv/put", {"key": key, "value": value})
                except MetadataUnavailable as error:
                    if error.takes_no_changes:
                        return

    def free(self) -> None:
        """Free space like an operator: delete, compact, defragment, and disarm the alarm.

        Raises:
            StorageFailure: the members do not serve for a minute.
        """
        until = time.monotonic() + _START_S
        while True:
            try:
                self._free()
            except StorageFailure:
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)
            else:
                return

    def _free(self) -> None:
        with closing(self.client(_MAINTENANCE_S)) as client:
            bounds = {"key": encoded(_FILLER.encode()), "range_end": encoded(_FILLER_END.encode())}
            deleted = client.write("/v3/kv/deleterange", bounds)
            asked = {"revision": deleted["header"]["revision"], "physical": True}
            with suppress(MetadataRefused):  # an earlier attempt has compacted it
                client.write("/v3/kv/compaction", asked)
        for each in self.members:
            with closing(self.client(_MAINTENANCE_S, only=each)) as alone:
                alone.write("/v3/maintenance/defragment", {})
        with closing(self.client(_MAINTENANCE_S)) as client:
            for alarm in client.write(_ALARM, {"action": "GET"}).get("alarms", []):
                client.write(_ALARM, alarm | {"action": "DEACTIVATE"})
            # A member that was just full may still refuse. The next attempt disarms it again.
            client.write("/v3/kv/put", {"key": encoded(_FILLER.encode()), "value": ""})

    def client(
        self,
        timeout_s: float = 1.0,
        credential: tuple[str, str] | None = None,
        only: EtcdMember | None = None,
    ) -> EtcdClient:
        """Return a client of all members, or of one member. ``credential``: user and password."""
        endpoints = self.endpoints if only is None else [only.endpoint]
        tls: Callable[[], ssl.SSLContext] | None = None
        if self._certificates is not None:
            context = client_context(self._certificates("client"))
            tls = lambda: context  # noqa: E731
        return EtcdClient(endpoints, timeout_s, tls, credential)

    def close(self) -> None:
        """Kill all members, and remove the temporary folder."""
        self._kill_all()
        if self._temporary:
            shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _kill_all(self) -> None:
        for each in self.members:
            each.kill()

    def _serves(self) -> bool:
        until = time.monotonic() + _START_S
        with closing(self.client()) as client:
            while time.monotonic() < until and all(each.alive for each in self.members):
                with suppress(StorageFailure):
                    client.write("/v3/kv/range", {"key": "YQ=="})
                    return True
                time.sleep(0.05)
        return False


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port
