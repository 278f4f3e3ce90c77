"""A broker process from start to end.

Order of a start: lock the directory, open it, open the logs, serve, publish the address, say that
it is ready. Order of a stop: take no new records, end all waits, flush and close the logs, end the
calls, take the address away, unlock. So nothing acknowledged is lost, and whoever finds the address
finds a broker that answers.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

from spark_stream.broker.activity import Activity
from spark_stream.broker.config import BrokerConfig
from spark_stream.broker.controlling import MOVES_S, ROUND_S, Controlling
from spark_stream.broker.driver import Driver
from spark_stream.broker.flight import FlightFacade
from spark_stream.broker.handover import LOOK_S as TROUBLE_S
from spark_stream.broker.handover import Balance, Withdrawals, handing_over
from spark_stream.broker.here import BrokerFacts, Here
from spark_stream.broker.host import Host
from spark_stream.broker.identity import Identity
from spark_stream.broker.links import LedPartitions, StreamLinks
from spark_stream.broker.listening import listening_socket, port_of
from spark_stream.broker.lock import DirectoryLock, IdLock
from spark_stream.broker.members import Members
from spark_stream.broker.peers import ConnectedPeers
from spark_stream.broker.proposals import Proposals
from spark_stream.broker.recent import BROKER_BYTES
from spark_stream.broker.replication.fetchers import Fetchers
from spark_stream.broker.replication.leading import Leading
from spark_stream.broker.scrubbing import BEGIN_S, Scrub
from spark_stream.broker.serving import Serving
from spark_stream.broker.spare_memory import LOOK_S, SpareMemory
from spark_stream.broker.standing import Standing
from spark_stream.broker.step_table import StepTable
from spark_stream.broker.stores import lease_folder, open_store
from spark_stream.broker.tenure import Tenure
from spark_stream.broker.topics import TopicDesk
from spark_stream.broker.transactions import TransactionDesk
from spark_stream.cluster.brokers import RegisteredBroker
from spark_stream.cluster.controller import ControllerSeat
from spark_stream.cluster.lease_files import LeaseFiles
from spark_stream.cluster.leases import Leases
from spark_stream.cluster.view import PAUSE_S, ClusterView
from spark_stream.environment import Clock, Ids, SystemClock, SystemIds, SystemMachine
from spark_stream.errors import DirectoryInUse, IsologError
from spark_stream.storage.directory import (
    LogDirectory,
    RunFile,
    check_directory,
    disown_directory,
    recorded_cluster_id,
)
from spark_stream.transport.failures import greeting_bytes
from spark_stream.transport.loop import Loop
from spark_stream.transport.server import Door, Server
from spark_stream.version import VERSION
from spark_stream.wire.addresses import UNIX, joined, location, split_address, with_port
from spark_stream.wire.allocator import keep_free_memory

logger = logging.getLogger(__name__)

_GRACE_SECONDS: Final = 1.0
_SWEEP_SECONDS: Final = 0.5  # how late an expired transaction is aborted at most
_SWITCH_S: Final = 0.0005
"""How long a thread may keep the interpreter while others want it. An append needs it some ten
times: with Python's default of 5 ms, and hundreds of fetches at work, it would wait long each
time."""
_AFTER_ERROR_S: Final = 0.1  # a task without a pause of its own would try on and on
_FLUSH_SECONDS: Final = 0.1  # the first time; then the task says


class Broker:
    """A broker that serves from construction until :meth:`stop`."""

    def __init__(
        self, config: BrokerConfig, clock: Clock | None = None, ids: Ids | None = None
    ) -> None:
        clock, ids = clock or SystemClock(), ids or SystemIds()
        self._config = config
        self.activity = Activity(clock)
        self._stop_asked = threading.Event()
        os.umask(0o077)  # a broker's files, and its socket, belong to their owner alone
        _allow_many_files()
        # Without links: one that is switched meanwhile must not lead new files elsewhere.
        path = Path(os.path.realpath(config.dir))
        with contextlib.ExitStack() as undo:
            check_directory(path)  # before the lock leaves a file in somebody else's directory
            self._lock = DirectoryLock(path)
            undo.callback(self._lock.release)
            is_new = recorded_cluster_id(path) is None
            directory, self._store, secret = open_store(path, config.metadata, ids, config.id)
            undo.callback(self._store.close)
            lease_files = LeaseFiles(lease_folder(path, config.metadata))
            self._id_lock = _locked_id(lease_files.folder, directory, is_new)
            undo.callback(self._id_lock.release)
            leases = Leases(lease_files, clock, config.lease_seconds)
            view = ClusterView(self._store)
            self._members = Members(view, leases)
            self._proposals = Proposals()
            runs = RunFile(path)
            self._host = Host(
                directory,
                view,
                config.topic_defaults,
                clock,
                int(config.producer_expiry_seconds * 1_000_000),
                losing=runs.forget_run,
                proposed=self._proposals.note,
                generation_of=self._members.generation_of,
                recent_bytes=min(BROKER_BYTES, config.memory_bytes // 8),
            )
            undo.callback(self._host.close)
            self._standing = Standing(
                self._store, self._host, self._members, ids, SystemMachine(), runs
            )
            self._scrub = Scrub(
                self._host,
                clock,
                config.scrub_bytes_per_second,
                config.scrub_seconds,
                self._stop_asked,
            )
            self._standing.vouch()
            incarnation = ids.new_id()
            boot_id = SystemMachine().boot_id() if config.mapped_reads else None
            table = StepTable(self._store, self._host)
            table.pass_over_used_numbers()
            me = Identity(directory.cluster_id, self._host.broker_id, incarnation, secret)
            peers = ConnectedPeers(
                me, self._members, clock, self._host.refresh, config.peer_addresses
            )
            self._driver = driver = Driver(table, peers)
            self._desk = TransactionDesk(
                driver,
                self._host,
                clock,
                directory.broker_id,
                leases,
                sink_expiry_s=config.sink_expiry_seconds,
            )
            self._topics = TopicDesk(
                driver,
                self._host,
                self._members,
                config.topic_defaults,
                ids,
                config.default_replication_factor,
            )
            self._leading = Leading(me, LedPartitions(self._host), config.replication, clock)
            undo.callback(self._leading.stop)
            self._fetchers = Fetchers(me, peers.endpoint_of, config.replication, clock)
            undo.callback(self._fetchers.stop)
            bound = listening_socket(config.listen)
            undo.callback(bound.close)
            self.address = self._named(port_of(bound))
            flight_listen, flight_address = self._flight_place()
            facts = BrokerFacts(
                self.address, str(path), directory.cluster_id, clock.monotonic(), flight_address
            )
            here = Here(
                self._host,
                self._topics,
                self._desk,
                self._members,
                facts,
                clock,
                self._scrub,
                self._store,
            )
            self._loop = Loop("isolog-io")
            undo.callback(self._loop.close)
            self._serving = Serving(
                here,
                table,
                me,
                self.activity,
                clock,
                self._loop,
                config.memory_bytes,
                self._leading,
                boot_id,
            )
            undo.callback(self._serving.stop)
            self._server = Server(self._loop)
            undo.callback(self._server.stop, "the broker did not start", 0.0)
            greeting = greeting_bytes(directory.cluster_id, directory.broker_id)
            self._server.open(Door(bound, self._serving.serve, lambda: greeting))
            self._flight: FlightFacade | None = None
            if flight_listen:
                self._flight = FlightFacade(
                    location(flight_listen), here, self.activity, config.memory_bytes
                )
                undo.callback(self._flight.shutdown)
            self._standing.register(
                RegisteredBroker(
                    directory.broker_id,
                    self.address,
                    incarnation,
                    VERSION,
                    rack=config.rack,
                    boot_id=boot_id,
                    flight=flight_address,
                )
            )
            self._tenure = Tenure(leases, directory.broker_id, incarnation, self._host.refresh)
            undo.callback(self._tenure.end)
            self._controlling = Controlling(
                self._host,
                self._members,
                ControllerSeat(self._store, self._host.broker_id, incarnation),
            )
            self._withdrawals = Withdrawals(self._host, self._members, clock)
            self._balance = Balance(self._host, self._members, clock, config.leader_balance_seconds)
            self._keepers = [
                self._keeper("lease", leases.pause_s, self._tenure.renew),
            ]
            undo.callback(self._stop_asked.set)
            self._begin()
            # What is finished at the start may have to wait for followers, and these for leaders.
            self._keepers += [
                self._keeper("watcher", PAUSE_S, self._host.refresh),
                self._keeper("proposals", 0.0, self._put_proposals),
                self._keeper("controller", ROUND_S, self._control),
                self._keeper("moves", MOVES_S, self._finish_moves),
                self._keeper("withdrawals", TROUBLE_S, self._withdraw),
                self._keeper("balance", self._balance.pause_s, self._hand_back),
            ]
            self._topics.remove_left_overs()
            self._desk.recover()
            self._lock.publish({"address": self.address, "pid": os.getpid()})
            undo.pop_all()
        self._keepers += [
            self._keeper("left-overs", _SWEEP_SECONDS, self._topics.remove_left_overs_of_others),
            self._keeper("housekeeper", config.housekeeping_seconds, self._host.upkeep.housekeep),
            self._keeper("flusher", _FLUSH_SECONDS, self._host.upkeep.flush_due),
            self._keeper("transactions", _SWEEP_SECONDS, self._desk.sweep),
            self._keeper("memory", LOOK_S, SpareMemory().give_back),
            self._keeper("scrub", BEGIN_S, self._scrub.look),
        ]

    def _begin(self) -> None:
        """Leads and follows from now on."""
        self._host.refresh()
        self._members.look()
        self._driver.run(self._standing.leading_again())
        self._host.begin(self._tenure.serves, StreamLinks(self._fetchers, self._host.refresh))

    def _put_proposals(self) -> None:
        """Waits for proposals, a while at most, and puts them on record."""
        if self._proposals.noted.wait(0.5):
            self._driver.run(self._proposals.putting())

    def _control(self) -> None:
        if self._members.look():
            self._host.tick_all()
        self._driver.run(self._standing.looking())
        self._host.upkeep.tick_due()
        self._driver.run(self._controlling.rounds())

    def _finish_moves(self) -> None:
        self._driver.run(self._controlling.finishing())

    def _withdraw(self) -> None:
        self._driver.run(self._withdrawals.looking())

    def _hand_back(self) -> None:
        self._driver.run(self._balance.looking())

    def heed_signals(self) -> None:
        """From now on SIGTERM and SIGINT end :meth:`run`, also if they come before it begins."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stop_asked.set())

    def run(self) -> None:
        """Serves until a signal, or too long without a call; then stops cleanly."""
        while not self._stop_asked.wait(0.5):
            limit = self._config.idle_seconds
            if limit and self.activity.idle_seconds() > limit:
                logger.info("no call for %g s: the broker ends", limit)
                break
        self.stop()

    def stop(self) -> None:
        """Stops; everything that was acknowledged is in the files."""
        with contextlib.suppress(IsologError):  # then its leases' end tells the others
            self._driver.run(handing_over(self._host, self._members))
        self._stop_asked.set()
        self._fetchers.stop()
        in_order = self._host.close()
        self._leading.stop()
        self._server.stop("the broker stops", _GRACE_SECONDS)
        self._serving.stop()
        self._loop.close()
        if self._flight is not None:
            ended = threading.Thread(target=self._flight.shutdown, name="shutdown", daemon=True)
            ended.start()
            ended.join(_GRACE_SECONDS)
        for keeper in self._keepers:
            keeper.join(_GRACE_SECONDS)
        if in_order:
            with contextlib.suppress(IsologError):  # then the next start cannot vouch
                self._standing.end()
        self._tenure.end()
        self._store.close()
        if self.address.startswith(UNIX):
            Path(self.address.removeprefix(UNIX)).unlink(missing_ok=True)
        self._id_lock.release()
        self._lock.release()
        logger.info("broker stopped")

    def _keeper(
        self, name: str, pause_s: float, task: Callable[[], float | None]
    ) -> threading.Thread:
        """A thread that runs the task again and again; it may say how long to pause after it.

        What fails for a reason that is known is told in one line, once while the reason lasts.
        """

        def keep() -> None:
            pause, told = pause_s, ""
            while not self._stop_asked.wait(pause):
                try:
                    pause = task() or pause_s
                    told = ""
                except IsologError as error:
                    pause = max(pause_s, _AFTER_ERROR_S)
                    if told != str(error) and not self._stop_asked.is_set():
                        told = str(error)
                        logger.error("%s: %s", name, told)
                except Exception:
                    pause = max(pause_s, _AFTER_ERROR_S)
                    if not self._stop_asked.is_set():
                        logger.exception("%s", name)

        thread = threading.Thread(target=keep, name=name, daemon=True)
        thread.start()
        return thread

    def _named(self, port: int, listen: str | None = None) -> str:
        """Return the address as clients write it: ``host:port`` or ``unix:PATH``."""
        listen = listen or self._config.listen
        if listen.startswith(UNIX):
            return listen
        if self._config.advertise:
            if listen == self._config.listen:
                return with_port(self._config.advertise, port)
            return joined(split_address(with_port(self._config.advertise, port))[0], port)
        return joined(split_address(listen)[0], port)

    def _flight_place(self) -> tuple[str, str]:
        """Return where Flight is to listen and its address for clients; empty if nowhere."""
        listen = self._config.flight_listen
        if not listen:
            return "", ""
        # Flight binds by itself, and does not say why it could not.
        with contextlib.closing(listening_socket(listen, "flight_listen")) as bound:
            port = port_of(bound)
        if listen.startswith(UNIX):
            Path(listen.removeprefix(UNIX)).unlink()
            return listen, listen
        return joined(split_address(listen)[0], port), self._named(port, listen)


def _locked_id(folder: Path, directory: LogDirectory, is_new: bool) -> IdLock:
    """The lock of the directory's id. Where another holds it, a new directory is nobody's again."""
    try:
        return IdLock(folder, directory.broker_id, directory.path)
    except DirectoryInUse:
        if is_new:
            disown_directory(directory)
        raise


def _allow_many_files() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def serve(config: BrokerConfig) -> NoReturn:
    """Runs a broker and ends this process with it (exit code 0).

    Prints ``isolog broker ready ADDRESS`` once it serves.
    """
    sys.setswitchinterval(_SWITCH_S)
    keep_free_memory()
    logging.basicConfig(
        level=config.log_level,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    logging.Formatter.converter = time.gmtime
    os.umask(0o077)  # whatever this process makes belongs to its owner alone
    broker = Broker(config)
    broker.heed_signals()  # who reads the next line may send one
    print(f"isolog broker ready {broker.address}", flush=True)
    broker.run()
    # A stream that its client keeps open without a word cannot be ended from here, and the
    # interpreter cannot end beside its thread. Everything is closed, so the process just goes.
    logging.shutdown()
    os._exit(0)
