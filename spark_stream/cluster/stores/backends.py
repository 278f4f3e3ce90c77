"""The places of a cluster's metadata: a store of records and a board of leases, named by a URL.

``sqlite:///PATH``, or a path, is a file, for brokers on one host. ``etcd://HOST:PORT,…/NAME`` are
the members of an etcd cluster, for brokers on any hosts. Several isolog clusters with different
names may use it.
"""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import unquote

from msgspec import Struct, field

from spark_stream.cluster.stores.etcd import EtcdStore, check_form
from spark_stream.cluster.stores.etcd_client import RANGE, EtcdClient, encoded
from spark_stream.cluster.stores.etcd_history import EtcdHistory
from spark_stream.cluster.stores.etcd_leases import EtcdLeases
from spark_stream.cluster.stores.lease_files import LeaseFiles, running_brokers
from spark_stream.cluster.stores.leases import SharedBoard
from spark_stream.cluster.stores.sqlite import SqliteStore
from spark_stream.cluster.stores.store import DurableStore
from spark_stream.directories import local_directory
from spark_stream.environment import Clock, Machine
from spark_stream.errors import InvalidConfig, InvalidOption, MetadataLost, MetadataUnavailable
from spark_stream.loggers import logger_of

logger = logger_of(__name__)

SQLITE: Final = "sqlite://"
ETCD: Final = "etcd://"
ETCD_LEASE_S: Final = 6.0
"""The least duration of a lease in etcd, which takes 2.1 to 2.4 s to elect a leader."""
_CALL_S_MAX: Final = 2.0
_START_S: Final = 30.0
_PAUSE_S: Final = 1.0
_ENDPOINT: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s/:,@\[\]]+):(\d{1,5})")
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,200}")


class EtcdPlace(Struct, frozen=True):
    """An isolog cluster in an etcd cluster. ``endpoints``: each ``host:port``."""

    endpoints: tuple[str, ...]
    name: str

    def __str__(self) -> str:
        return f"{ETCD}{','.join(self.endpoints)}/{self.name}"


def parse_place(text: str) -> Path | EtcdPlace:
    """Parse a URL or a path.

    Raises:
        InvalidConfig: The URL is not one of a store.
    """
    if text.startswith(ETCD):
        hosts, _, name = text.removeprefix(ETCD).partition("/")
        endpoints = tuple(hosts.split(","))
        if not _NAME.fullmatch(name) or not all(map(_ENDPOINT.fullmatch, endpoints)):
            raise InvalidConfig(
                f"metadata: {text!r} is not etcd://HOST:PORT,…/NAME",
                hint="NAME is the isolog cluster's own, such as etcd://10.0.0.1:2379/prod. A user"
                " and a password have separate settings.",
                setting="metadata",
            )
        return EtcdPlace(endpoints, name)
    if text.startswith(SQLITE):
        path = unquote(text.removeprefix(SQLITE))
        if not path.startswith("/"):
            raise InvalidConfig(
                f"metadata: {text!r} names no absolute path: write sqlite:///PATH",
                setting="metadata",
            )
        return Path(path)
    if "://" in text:
        raise InvalidConfig(
            f"metadata: {text.partition('://')[0]!r} is no metadata store: sqlite:///PATH or"
            " etcd://HOST:PORT,…/NAME",
            setting="metadata",
        )
    try:
        return local_directory(text, "metadata", None)
    except InvalidOption:
        raise InvalidConfig(
            f"metadata: {text!r} is no local path",
            hint="Name a file, sqlite:///PATH, or etcd://HOST:PORT,…/NAME.",
            setting="metadata",
        ) from None


class EtcdAccess(Struct, frozen=True):
    """The access to etcd. ``tls`` returns the context of new connections, or is None without TLS.

    ``credential``: a user and a password.
    """

    tls: Callable[[], ssl.SSLContext] | None = None
    credential: tuple[str, str] | None = None


class Backend(Protocol):
    """The metadata of one cluster. Its calls may raise ``StorageFailure``."""

    def exists(self) -> bool:
        """Return whether there is a store. It is made when it is opened.

        Raises:
            MetadataLost: There is none, but running brokers have it open.
        """

    def open_store(self, mark: str | None = None, *, accepts_loss: bool = False) -> DurableStore:
        """Open the records. ``mark``: of the store, when the caller had it open last.

        ``accepts_loss``: whether a store in which running brokers have found a loss is opened too,
        to copy or to replace all records.

        Raises:
            UnsupportedFormat: The records are in the form of another release.
            MetadataLost: The store has lost changes since the mark.
        """

    def open_board(self) -> SharedBoard:
        """Open the leases."""


class SqliteBackend(Struct, frozen=True):
    """A file, and the folder of the leases beside it: one folder for every path to the file."""

    file: Path

    def __str__(self) -> str:
        return str(self.file)

    def exists(self) -> bool:
        if self.file.exists():
            return True
        if running := running_brokers(self._leases):
            raise MetadataLost(
                f"the metadata store {self.file} is missing, and brokers run that have it open:"
                f" {', '.join(running)}",
                path=str(self.file),
            )
        return False

    def open_store(self, mark: str | None = None, *, accepts_loss: bool = False) -> DurableStore:
        return SqliteStore(self.file)

    def open_board(self) -> SharedBoard:
        return LeaseFiles(self._leases)

    @property
    def _leases(self) -> Path:
        return self.file.resolve().parent / "leases"


class EtcdBackend(Struct, frozen=True):
    """An etcd cluster. ``lease_s``: the duration of this broker's leases.

    A call of one member takes a sixth of that at most, and two seconds, so that a lease can be
    renewed by another. ``history``: shared by the store and the board.
    """

    place: EtcdPlace
    access: EtcdAccess
    clock: Clock
    machine: Machine
    lease_s: float
    history: EtcdHistory = field(default_factory=EtcdHistory)

    def __str__(self) -> str:
        return str(self.place)

    def exists(self) -> bool:
        """Wait for etcd: brokers and members may start at the same time.

        Raises:
            MetadataUnavailable: Etcd has not answered for half a minute.
        """
        until = time.monotonic() + _START_S
        with closing(self._client()) as client:
            while True:
                try:
                    client.read(RANGE, {"key": encoded(b"/")})
                except MetadataUnavailable as error:
                    if time.monotonic() >= until:
                        raise
                    logger.warning("waiting for etcd: %s", error.message)
                    time.sleep(_PAUSE_S)
                else:
                    return True

    def open_store(self, mark: str | None = None, *, accepts_loss: bool = False) -> DurableStore:
        client = self._client()
        try:
            check_form(client, self.place.name)
            store = EtcdStore(client, self.place.name, accepts_loss=accepts_loss)
            store.compare(mark)
        except BaseException:
            client.close()
            raise
        return store

    def open_board(self) -> SharedBoard:
        return EtcdLeases(self._client(), self.place.name, self.clock, self.machine, self.lease_s)

    def _client(self) -> EtcdClient:
        return EtcdClient(
            self.place.endpoints,
            min(self.lease_s / 6, _CALL_S_MAX),
            self.access.tls,
            self.access.credential,
            self.history,
        )
