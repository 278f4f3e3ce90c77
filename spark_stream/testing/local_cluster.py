"""A cluster of real brokers on this machine for tests, which can kill, pause and isolate them.

Each broker is a process with a directory. The brokers share one metadata store. All files are in a
temporary folder, which is removed at the end of the ``with`` block. The brokers end with this
process, even if it is killed.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import psutil

from spark_stream.client.log import Log, connect
from spark_stream.cluster.backup import STORE_NAME
from spark_stream.directories import local_directory
from spark_stream.errors import BrokerUnavailable, InvalidOption, PortInUse, from_wire
from spark_stream.testing.guard import kill_with_this_process
from spark_stream.testing.links import Link, Links
from spark_stream.wire.addresses import joined
from spark_stream.wire.allocator import MEMORY_BYTES_DEFAULT, allocator_settings


class ProcessPlace(NamedTuple):
    """The place of a process. ``host``: its address to listen on. ``prefix``: of its command."""

    host: str = "127.0.0.1"
    prefix: tuple[str, ...] = ()


HERE = ProcessPlace()


def pause_process(pid: int) -> None:
    """Pause a process (SIGSTOP), and wait until it has stopped. Before that its threads run on."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + _END_S
    while not _has_stopped(pid) and time.monotonic() < deadline:
        time.sleep(0.002)


def _has_stopped(pid: int) -> bool:
    process = psutil.Process(pid)
    if not psutil.LINUX:
        return bool(process.status() == psutil.STATUS_STOPPED)
    threads = (psutil.Process(each.id) for each in process.threads())
    return all(each.status() == psutil.STATUS_STOPPED for each in threads)


READY: Final = "isolog broker ready "
_START_S: Final = 60.0
_END_S: Final = 20.0


BrokerRef = int | str
"""The number of a broker, or its id, which is the number as text."""


class LocalBroker:
    """A broker of a :class:`LocalCluster`: its process and its directory.

    Attributes:
        number: The number of the broker.
        directory: The directory of its logs.
        address: Its address for clients, ``host:port``.
    """

    module: Sequence[str] = ("spark_stream.broker",)
    """The module that runs it, with the first arguments of the module."""

    def __init__(
        self, number: int, directory: Path, conf: Mapping[str, Any], place: ProcessPlace = HERE
    ) -> None:
        self.number = number
        self.place = place
        """The place of its process. A change applies at its next start."""
        self.directory = directory
        self.address = ""
        self.peer_address = ""
        """Its address for the other brokers."""
        self._conf = conf
        self._file = directory.with_name(f"{directory.name}.toml")
        self._errors = directory.with_name(f"{directory.name}.stderr")
        self._process: subprocess.Popen[str] | None = None

    @property
    def id(self) -> str:
        """The broker id, which is the number as text."""
        return str(self.number)

    @property
    def alive(self) -> bool:
        """Whether its process runs or is paused."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The id of its process, or of its last process."""
        assert self._process is not None
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code of its process, None while it runs."""
        return None if self._process is None else self._process.poll()

    def log_text(self) -> str:
        """Return its output on standard error, over all its starts."""
        return self._errors.read_text() if self._errors.exists() else ""

    def configure(self, conf: Mapping[str, Any]) -> None:
        """Add these settings, which apply at its next start."""
        self._conf = {**self._conf, **conf}

    def flags(self) -> list[str]:
        """Return the flags with its addresses, which a restarted broker keeps."""
        anywhere = joined(self.place.host, 0)
        listen, peer_listen = self.address or anywhere, self.peer_address or anywhere
        return ["--listen", listen, "--peer-listen", peer_listen]

    def spawn(self) -> None:
        """Start its process, without waiting for it."""
        self._file.write_text("".join(f"{name} = {_toml(v)}\n" for name, v in self._conf.items()))
        files = ["--dir", str(self.directory), "--conf", str(self._file)]
        run = (sys.executable, "-m", *self.module)
        with self._errors.open("a") as errors:
            self._process = subprocess.Popen(
                [*self.place.prefix, *run, *files, *self.flags()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | allocator_settings(MEMORY_BYTES_DEFAULT),
            )
        kill_with_this_process(self._process.pid)

    def await_ready(self) -> None:
        """Wait until the broker serves.

        Raises:
            BrokerUnavailable: The broker does not serve within a minute.
            IsologError: the error that the broker reported when it ended.
        """
        process = self._process
        assert process is not None
        assert process.stdout is not None
        line = ""
        if select.select([process.stdout], [], [], _START_S)[0]:
            line = process.stdout.readline().strip()
        process.stdout.close()
        if line.startswith(READY):
            self.address = line.removeprefix(READY)
            facts = json.loads((self.directory / "broker.json").read_text())
            self.peer_address = facts["peer_address"]
            return
        if line:  # it has reported an error, and exits
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
        self.end(signal.SIGKILL)
        try:
            error = json.loads(line)["error"]
        except (ValueError, KeyError):
            raise BrokerUnavailable(
                f"broker {self.number} did not start: {self.log_text()[-2000:]}"
            ) from None
        raise from_wire(error)

    def signal(self, number: int) -> None:
        """Send a signal to its process."""
        assert self._process is not None
        self._process.send_signal(number)

    def pause(self) -> None:
        """Pause its process (SIGSTOP) until :meth:`resume`. Wait until it has stopped."""
        pause_process(self.pid)

    def resume(self) -> None:
        """Resume its paused process."""
        self.signal(signal.SIGCONT)

    def wait(self, timeout_s: float = _END_S) -> int:
        """Wait until its process has exited, and return the exit code."""
        assert self._process is not None
        return self._process.wait(timeout_s)

    def end(self, number: int, timeout_s: float = _END_S) -> None:
        """End its process by a signal, and wait until it has exited."""
        if self._process is None:
            return
        if self.alive:
            self._process.send_signal(number)
        self.wait(timeout_s)


class LocalCluster:
    """A cluster of real brokers on this machine, ``1`` to ``brokers``, until :meth:`close`.

    A broker is named by its number, or by its id, which is the number as text:
    ``cluster.kill(log.describe(topic).partitions[0].leader)``.

    Args:
        brokers: The number of brokers.
        conf: Settings of all brokers, as in a configuration file.
        racks: The rack of each broker.
        cuttable: Connect brokers through relays that :meth:`cut` can interrupt. Without relays
            replication is faster.
        folder: The folder of all files, by default a temporary one that :meth:`close` removes.
        places: The place where each broker runs, by default this machine.

    Examples:
        >>> with isolog.testing.LocalCluster(brokers=1) as cluster:
        ...     with cluster.connect() as log:
        ...         len(log.cluster().brokers)
        1
    """

    def __init__(
        self,
        brokers: int = 3,
        *,
        conf: Mapping[str, Any] | None = None,
        racks: Sequence[str] | None = None,
        cuttable: bool = True,
        folder: str | os.PathLike[str] | None = None,
        places: Sequence[ProcessPlace] = (),
    ) -> None:
        if brokers < 1:
            raise InvalidOption(f"a cluster has at least one broker, not {brokers}")
        if racks is not None and len(racks) != brokers:
            raise InvalidOption(
                f"{len(racks)} racks for {brokers} brokers: give one for each broker"
            )
        self._temporary = not folder
        named = folder or tempfile.mkdtemp(prefix="isolog-")
        self.folder = local_directory(named, "folder", None).absolute()
        self._links = Links() if cuttable and brokers > 1 else None
        self._relays: dict[tuple[int, int], Link] = {}
        self._conf = dict(conf or {})
        self._places = places
        self._brokers: dict[int, LocalBroker] = {}
        try:
            for number in range(brokers):
                self._add(None if racks is None else racks[number])
            for each in self._brokers.values():
                each.spawn()
            for each in self._brokers.values():
                each.await_ready()
                self._lead_links_to(each)
        except BaseException:
            self.close()
            raise

    # -- use ---------------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, for ``connect`` and for Spark's option."""
        return ",".join(each.address for each in self._brokers.values())

    @property
    def brokers(self) -> Mapping[int, LocalBroker]:
        """The brokers, by number."""
        return self._brokers

    def broker(self, broker: BrokerRef) -> LocalBroker:
        """Return the broker of this id, or raise InvalidOption."""
        for each in self._brokers.values():
            if each.id == str(broker):
                return each
        raise InvalidOption(
            f"unknown broker {broker!r}, the brokers are {', '.join(map(str, self._brokers))}"
        )

    def connect(self, **options: Any) -> Log:
        """Connect to the cluster. The caller closes the connection."""
        return connect(self.bootstrap, **options)

    def leader(self, topic: str, partition: int = 0) -> int:
        """Return the number of the partition's leader. Wait until there is a leader."""
        deadline = time.monotonic() + _END_S
        with self.connect() as log:
            while True:
                leader = log.describe(topic).partitions[partition].leader
                if leader is not None and self.broker(int(leader)).alive:
                    return int(leader)
                if time.monotonic() > deadline:
                    raise BrokerUnavailable(f"{topic}/{partition} has no live leader")
                time.sleep(0.02)

    # -- faults of brokers -------------------------------------------------------------------------

    def kill(self, broker: BrokerRef) -> None:
        """Kill the broker (SIGKILL)."""
        self.broker(broker).end(signal.SIGKILL)

    def stop(self, broker: BrokerRef) -> None:
        """Shut the broker down cleanly (SIGTERM). It hands over its partitions."""
        self.broker(broker).end(signal.SIGTERM)

    def pause(self, broker: BrokerRef) -> None:
        """Pause the process (SIGSTOP) until :meth:`resume`. Wait until it has stopped."""
        self.broker(broker).pause()

    def resume(self, broker: BrokerRef) -> None:
        """Resume a paused broker."""
        self.broker(broker).resume()

    def restart(self, broker: BrokerRef, conf: Mapping[str, Any] | None = None) -> None:
        """Start the broker at its old address. If it runs, shut it down cleanly first.

        ``conf``: settings that are added for this broker.
        """
        restarted = self.broker(broker)
        restarted.configure(conf or {})
        if restarted.alive:
            restarted.signal(signal.SIGCONT)
            restarted.end(signal.SIGTERM)
        until = time.monotonic() + _END_S
        while True:
            restarted.spawn()
            try:
                restarted.await_ready()
                break
            except PortInUse:  # another connection got its port
                if time.monotonic() > until:
                    raise
        self._lead_links_to(restarted)

    def add_broker(self, rack: str | None = None) -> int:
        """Start one more broker, in this rack, and return its number."""
        broker = self._add(rack)
        broker.spawn()
        broker.await_ready()
        self._lead_links_to(broker)
        return broker.number

    def cut(self, one: BrokerRef, other: BrokerRef) -> None:
        """Cut the link between two brokers. All data is held back, and neither gets an error."""
        for link in self._between(one, other):
            link.cut()

    def heal(self, one: BrokerRef | None = None, other: BrokerRef | None = None) -> None:
        """Heal the link between two brokers, or all links without arguments."""
        links = self._relays.values() if one is None or other is None else self._between(one, other)
        for link in links:
            link.heal()

    def cut_off(self, broker: BrokerRef) -> None:
        """Isolate the broker from all others."""
        for other in self._brokers:
            if other != self.broker(broker).number:
                self.cut(broker, other)

    # -- end ---------------------------------------------------------------------------------------

    def close(self) -> None:
        """End all brokers, and remove the temporary folder."""
        for each in self._brokers.values():
            each.end(signal.SIGKILL)
        if self._links is not None:
            self._links.close()
            self._links = None
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- internals ---------------------------------------------------------------------------------

    def _add(self, rack: str | None) -> LocalBroker:
        number = len(self._brokers) + 1
        store = self.folder / "metadata"
        store.mkdir(mode=0o700, parents=True, exist_ok=True)
        conf: dict[str, Any] = {
            "id": str(number),
            "metadata": str(store / STORE_NAME),
            **({} if rack is None else {"rack": rack}),
            **self._conf,
        }
        if self._links is not None:
            for other in self._brokers:
                self._relays[number, other] = self._links.open()
                self._relays[other, number] = self._links.open()
                self._relays[number, other].lead_to(
                    self._brokers[other].peer_address or "127.0.0.1:1"
                )
            conf["peer_addresses"] = _Addresses(self, number)
        place = self._places[number - 1] if number <= len(self._places) else HERE
        broker = self._brokers[number] = LocalBroker(
            number, self.folder / f"broker-{number}", conf, place
        )
        return broker

    def addresses_for(self, number: int) -> Iterator[tuple[str, str]]:
        """Yield the addresses of other brokers for a broker: (broker id, address of the relay)."""
        for (source, target), link in self._relays.items():
            if source == number:
                yield str(target), link.address

    def _lead_links_to(self, broker: LocalBroker) -> None:
        for (_, target), link in self._relays.items():
            if target == broker.number:
                link.lead_to(broker.peer_address)

    def _between(self, one: BrokerRef, other: BrokerRef) -> list[Link]:
        first, second = self.broker(one).number, self.broker(other).number
        if self._links is None or first == second:
            raise InvalidOption(
                f"brokers {one} and {other} have no link: the cluster was created with"
                " cuttable=False, or they are the same broker"
            )
        return [self._relays[first, second], self._relays[second, first]]


class _Addresses:
    """The addresses of the other brokers, read when a broker's configuration is written."""

    def __init__(self, cluster: LocalCluster, number: int) -> None:
        self._cluster = cluster
        self._number = number

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return self._cluster.addresses_for(self._number)


def _toml(value: Any) -> str:
    """Format a value for a configuration file."""
    if isinstance(value, Mapping | _Addresses):
        items = value.items() if isinstance(value, Mapping) else value
        return "{" + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in items) + "}"
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value)
