"""A broker process from start to end.

Order of a start: lock the directory, open it, open the logs, serve, publish the address, report
that it is ready. Order of a stop: take no new records, end all waits, flush and close the logs, end
the calls, remove the address, unlock. So no acknowledged record is lost, and a client that finds
the address finds a broker that answers.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

from msgspec.structs import replace

from spark_stream.broker.access.audit import Audit
from spark_stream.broker.access.authorizer import AccessSettings, Authorizer
from spark_stream.broker.access.jwts import JwtIssuer
from spark_stream.broker.access.quotas import Quotas
from spark_stream.broker.actions.context import BrokerContext, BrokerFacts
from spark_stream.broker.background import BackgroundTasks
from spark_stream.broker.config import BrokerConfig
from spark_stream.broker.connections import Certificates, shared_backend
from spark_stream.broker.core import BrokerCore, BrokerDisk
from spark_stream.broker.counts import BrokerCounts
from spark_stream.broker.gateway import GatewayProcess, check_gateway, gateway_command
from spark_stream.broker.metrics.endpoint import MetricsEndpoint
from spark_stream.broker.metrics.scrape import ScrapedBroker
from spark_stream.broker.network import ConnectedNetwork
from spark_stream.broker.node.controlling import MOVES_S, ROUND_S
from spark_stream.broker.node.handover import TROUBLE_S
from spark_stream.broker.node.identity import BrokerIdentity, DirectoryLock, open_store, own_backend
from spark_stream.broker.node.members import PROBE_S
from spark_stream.broker.node.scrubbing import BEGIN_S, Scrub
from spark_stream.broker.serving.memory import LOOK_S, FreeMemory
from spark_stream.broker.serving.pool import Activity
from spark_stream.broker.serving.serving import Serving
from spark_stream.cluster.access import TOKENS, Token, encode
from spark_stream.cluster.backup import check_not_moved
from spark_stream.cluster.brokers import RegisteredBroker
from spark_stream.cluster.stores.leases import IdLock, Leases, SharedBoard
from spark_stream.cluster.stores.store import TimedStore
from spark_stream.cluster.view import PAUSE_S
from spark_stream.consistency.ids import BrokerId
from spark_stream.environment import VERSION, Clock, Ids, SystemClock, SystemIds, SystemMachine
from spark_stream.errors import DirectoryInUse, IsologError, StorageFailure
from spark_stream.garbage import freeze_survivors
from spark_stream.loggers import logger_of
from spark_stream.operating_system import (
    UNIX_SOCKETS,
    keep_free_memory,
    open_files_limit,
    raise_open_files_limit,
)
from spark_stream.scripts.readers import SESSIONS_S
from spark_stream.scripts.steps import Script
from spark_stream.storage.disk.descriptors import SPARE_FILES, files_needed
from spark_stream.storage.disk.directory import (
    LogDirectory,
    RunFile,
    StoreMarkFile,
    check_directory,
    disown_directory,
    recorded_cluster_id,
)
from spark_stream.transport.listening import is_local, listening_socket, port_of
from spark_stream.transport.loop import Loop
from spark_stream.transport.server import Door, IncomingConnection, Serve, Server
from spark_stream.transport.streams import greeting_bytes
from spark_stream.transport.tls import RotatingContext
from spark_stream.wire.addresses import UNIX, joined, split_address, with_port

logger = logger_of(__name__)

_GRACE_SECONDS: Final = 1.0
_SWEEP_SECONDS: Final = 0.5  # the latest abort of an expired transaction
_SWITCH_S: Final = 0.0005
"""The time for which a thread may keep the interpreter while others want it.

An append needs it some ten times. With Python's default of 5 ms, and hundreds of fetches at work,
it would wait long each time.
"""
_CERTIFICATES_S: Final = 1.0
_STORE_MARK_S: Final = 2.0  # a crash of this broker hides the changes of the store in this time
_ACCESS_S: Final = 1.0
_REPEAT_S: Final = 2.0
_QUIET_S: Final = 0.5  # without a reported change, the store is read this often
_CLIENTS_LEAST: Final = 64  # connections that a broker should be able to take
_FLUSH_SECONDS: Final = 0.1  # the first pause; the task returns the next ones


class Broker:
    """A broker that serves from construction until :meth:`stop`."""

    def __init__(
        self, config: BrokerConfig, clock: Clock | None = None, ids: Ids | None = None
    ) -> None:
        clock, ids = clock or SystemClock(), ids or SystemIds()
        self._config = config
        self._clock = clock
        self.activity = Activity(clock)
        self._stop_asked = threading.Event()
        self._is_open = False
        self.has_failed = False
        """Whether it ends because of an error."""
        self._repeats_at = 0.0
        self._certificates = Certificates(config)
        if config.kafka_listen:
            check_gateway(config)
        os.umask(0o077)  # a broker's files, and its socket, belong to their owner alone
        raise_open_files_limit()
        with contextlib.ExitStack() as undo:
            me, boot_id = self._open(ids, undo)
            self._serve(me, boot_id, undo)
            self._begin(me, boot_id, undo)
            self._lock.publish(
                {
                    "address": self.address,
                    "peer_address": self.peer_address,
                    "metrics_address": self.metrics_address,
                    "kafka_address": self.kafka_address,
                    "pid": os.getpid(),
                    "directory": self._facts.directory,
                }
            )
            self._is_open = True
            undo.pop_all()
        self._gateway: GatewayProcess | None = None
        if self._kafka_listen:
            places = (self.address, self._kafka_listen, self.kafka_address)
            command = gateway_command(config, *places)
            self._gateway = GatewayProcess(command)

    def _open(self, ids: Ids, undo: contextlib.ExitStack) -> tuple[BrokerIdentity, str | None]:
        """Lock and open the directory and the store, then the logs.

        Return this broker's identity, and the boot id of its machine if its files may be mapped.
        """
        config, clock, machine = self._config, self._clock, SystemMachine()
        # Links are resolved first: one that changes later must not lead new files elsewhere.
        path = Path(os.path.realpath(config.dir))
        check_directory(path)  # before the lock leaves a file in a foreign directory
        self._lock = DirectoryLock(path)
        undo.callback(self._lock.release)
        is_new = recorded_cluster_id(path) is None
        shared = shared_backend(config, clock, machine, self._certificates)
        counts = BrokerCounts()
        directory, store, secret = open_store(path, shared, ids, config.id)
        self._store = TimedStore(
            store, counts.store_reads, counts.store_writes, counts.store_errors
        )
        undo.callback(self._store.close)
        self._board = (shared or own_backend(path)).open_board()
        undo.callback(self._board.close)
        self._id_lock = _locked_id(self._board, directory, is_new)
        undo.callback(self._release_id)
        check_not_moved(self._store)
        me = BrokerIdentity(
            directory.cluster_id, BrokerId(directory.broker_id), ids.new_id(), secret
        )
        self._certificates.check_own_name(me.broker_id)
        self._network = ConnectedNetwork(
            me, clock, config.replication, config.peer_addresses, self._certificates.to_peers
        )
        undo.callback(self._network.stop)
        self.core = core = BrokerCore(
            self._store,
            Leases(self._board, clock, config.lease_s),
            clock,
            ids,
            machine,
            BrokerDisk(directory, RunFile(path), spare_files=SPARE_FILES),
            self._network,
            config.core,
            counts=counts,
        )
        undo.callback(core.host.close)
        undo.callback(self._network.stop_following)
        issuer = None if config.jwt is None else JwtIssuer(config.jwt, clock)
        settings = AccessSettings(config.authentication, frozenset(config.super_users), issuer)
        audit = Audit(path / "audit.log" if config.authentication else None, clock)
        undo.callback(audit.close)
        self._authorizer = Authorizer(
            core.host.view,
            secret.key_for("sessions"),
            clock,
            settings,
            audit,
            core.host.contact.try_refresh,
        )
        core.host.guesses = not config.authentication
        core.registration.decide_generation()
        core.table.reserve_used_numbers()
        self._facts = BrokerFacts("", str(path), directory.cluster_id, clock.monotonic())
        return me, machine.boot_id() if config.mapped_reads else None

    def _serve(self, me: BrokerIdentity, boot_id: str | None, undo: contextlib.ExitStack) -> None:
        """Listen, and answer calls."""
        config, clock, core = self._config, self._clock, self.core
        _warn_of_open_doors(config)
        self._scrub = Scrub(
            core.host,
            clock,
            config.scrub_bytes_per_second,
            config.scrub_seconds,
            self._stop_asked,
        )
        bound = listening_socket(config.listen)
        undo.callback(bound.close)
        self.address = self._named(port_of(bound))
        self.peer_address = ""
        peers: socket.socket | None = None
        if place := config.peer_place:
            peers = listening_socket(place, "peer_listen")
            undo.callback(peers.close)
            self.peer_address = self._named(port_of(peers), place)
        flight_listen, self._flight_address = self._free_place("flight_listen")
        self._kafka_listen, self.kafka_address = self._free_place("kafka_listen")
        self._authorizer.extend = self._extend_token
        here = BrokerContext(
            core.host,
            core.topics,
            core.transactions,
            core.members,
            core.leaves,
            core.observer,
            replace(self._facts, address=self.address, flight=self._flight_address),
            clock,
            self._scrub,
            self._store,
            self._authorizer,
            Quotas(lambda: core.host.view.now.access.quotas, clock, config.memory_bytes),
        )
        self._loop, self._peer_loop = Loop("isolog-io"), Loop("isolog-peer-io")
        undo.callback(self._loop.close)
        undo.callback(self._peer_loop.close)
        self._serving = Serving(
            here,
            core.table,
            me,
            self.activity,
            clock,
            self._loop,
            self._peer_loop,
            config.memory_bytes,
            self._network.leading,
            boot_id,
        )
        undo.callback(self._serving.stop)
        self._server, self._peer_server = Server(self._loop), Server(self._peer_loop)
        undo.callback(self._server.stop, "the broker did not start", 0.0)
        undo.callback(self._peer_server.stop, "the broker did not start", 0.0)
        greeting = greeting_bytes(me.cluster_id, me.broker_id)
        certificates = self._certificates
        self._open_door(
            self._server,
            bound,
            self._serving.welcome_client,
            greeting,
            certificates.for_clients,
            trusts_all=not self._authorizer.requires_authentication,
        )
        if peers is not None:
            self._open_door(
                self._peer_server,
                peers,
                self._serving.welcome_peer,
                greeting,
                certificates.for_peers,
                trusts_all=not self._authorizer.requires_authentication,
            )
        self._show_metrics(here, undo)
        self._flight: FlightFacade | None = None
        self._make_flight: Callable[[], FlightFacade] | None = None
        if flight_listen:
            from spark_stream.broker.flight.facade import FlightFacade  # loads gRPC

            self._make_flight = partial(
                FlightFacade,
                flight_listen,
                here,
                self.activity,
                self._serving.appends,
                config.memory_bytes,
                certificates.client_files if certificates.for_clients else None,
                requires_client=config.tls.require_client_cert,
            )
            self._flight = self._make_flight()
            undo.callback(self._end_flight)

    def _show_metrics(self, here: BrokerContext, undo: contextlib.ExitStack) -> None:
        """Answer scrapes and probes, if the configuration has an address for them."""
        self.metrics_address = ""
        self._metrics: MetricsEndpoint | None = None
        if not self._config.metrics_listen:
            return
        bound = listening_socket(self._config.metrics_listen, "metrics_listen")
        undo.callback(bound.close)
        host, _ = split_address(self._config.metrics_listen)
        self.metrics_address = joined(host, port_of(bound))
        broker = ScrapedBroker(
            here,
            self._config.rack or "",
            self._config.memory_bytes,
            (self._server, self._peer_server),
            self.activity,
            self._serving,
            holds_lease=self._holds_lease,
            problem=self._why_not_ready,
        )
        self._metrics = MetricsEndpoint(bound, broker)
        undo.callback(self._metrics.stop)
        logger.info("metrics and health are shown at http://%s/", self.metrics_address)

    def _holds_lease(self) -> bool:
        return self._is_open and self.core.lease_keeper.serves()

    def _why_not_ready(self) -> str | None:
        """Return the reason why clients should use other brokers, or None if there is none."""
        if not self._is_open:
            return "the broker starts"
        if self._stop_asked.is_set():
            return "the broker stops"
        if self._holds_lease() or any(each.leads for each in self.core.host.open_replicas()):
            return None
        return (
            "the broker's lease expired, and no followers have promised not to lead: it leads no"
            " partition until it reaches the metadata store"
        )

    def _extend_token(self, token: Token) -> None:
        """Store a token whose life was extended, unless it was revoked in the meantime."""
        key = TOKENS + token.id
        record = self._store.get(key)
        if record is not None:
            self._store.put(key, encode(token), record.version)

    def _open_door(
        self,
        server: Server,
        bound: socket.socket,
        welcome: Callable[[IncomingConnection], Serve],
        greeting: bytes,
        tls: RotatingContext | None,
        *,
        trusts_all: bool = True,
    ) -> None:
        """Accept connections. A Unix socket is protected by its file's permissions, not by TLS."""
        speaks_tls = tls is not None and bound.family != UNIX_SOCKETS
        context = tls.current if tls is not None and speaks_tls else None
        server.open(Door(bound, welcome, lambda: greeting, context, trusts_all))

    def _end_flight(self) -> None:
        if self._flight is not None:
            self._flight.shutdown()

    def _look_at_certificates(self) -> None:
        """Use new certificates. Flight takes one only at its start.

        So another Flight server takes the place of the present one, which ends with the last of its
        calls: a client that reads no data can delay that for ever.
        """
        if self._certificates.refresh() and self._flight is not None:
            earlier, self._flight = self._flight, None
            threading.Thread(target=earlier.shutdown, name="earlier-flight", daemon=True).start()
        if self._flight is None and self._make_flight is not None:
            self._flight = self._make_flight()
            logger.info("restarted the Flight server with the new certificate")

    def _begin(self, me: BrokerIdentity, boot_id: str | None, undo: contextlib.ExitStack) -> None:
        """Join the cluster: lead, follow, and start the repeated tasks."""
        core, run = self.core, self.core.driver.run
        self._tasks = BackgroundTasks(run, self._stop_asked)
        core.registration.register(
            RegisteredBroker(
                me.broker_id,
                self.address,
                me.incarnation,
                VERSION,
                rack=self._config.rack,
                boot_id=boot_id,
                peer_address=self.peer_address,
                flight=self._flight_address,
                begins_reserved=True,
            )
        )
        core.take_lease(me.incarnation)
        undo.callback(core.lease_keeper.end)
        self._tasks.start("lease", core.leases.pause_s, self._renew_lease)
        undo.callback(self._stop_asked.set)
        run(core.beginning())
        # ``recovering`` may wait for followers, and they for leaders: so these tasks start first.
        self._tasks.start("watcher", PAUSE_S, self._follow_store)
        self._tasks.start("proposals", 0.0, self._put_proposals)
        self._tasks.start("controller", ROUND_S, self._control)
        self._tasks.start("observer", PROBE_S, core.observer.probing)
        self._tasks.start("moves", MOVES_S, core.controlling.finishing)
        self._tasks.start("withdrawals", TROUBLE_S, core.withdrawals.checking)
        self._tasks.start("balance", core.balance.pause_s, core.balance.checking)
        run(core.recovering())
        _warn_of_few_files(len(core.host.open_replicas()))
        self._tasks.start("left-overs", _SWEEP_SECONDS, core.topics.removing_left_overs)
        housekeeping_s = self._config.housekeeping_seconds
        self._tasks.start("housekeeper", housekeeping_s, core.host.upkeep.housekeep)
        self._tasks.start("flusher", _FLUSH_SECONDS, core.host.upkeep.flush_due)
        self._tasks.start("transactions", _SWEEP_SECONDS, core.transactions.sweeping)
        self._tasks.start("sessions", SESSIONS_S, core.ending_sessions)
        self._tasks.start("store-mark", _STORE_MARK_S, self._record_store)
        self._tasks.start("certificates", _CERTIFICATES_S, self._look_at_certificates)
        self._tasks.start("access", _ACCESS_S, self._authorizer.recheck)
        self._tasks.start("memory", LOOK_S, FreeMemory().release)
        self._tasks.start("scrub", BEGIN_S, self._scrub.look)

    def _follow_store(self) -> None:
        """Act on the next change of the store. Without one, look again after a while."""
        if self.core.host.is_settled:
            self._store.await_change(_QUIET_S)
        self.core.host.follow_store()

    def _control(self) -> Script[None]:
        """Run the controller's round. Repeat a change if the store did not take the last one.

        Otherwise the views would report a failure until the next change. The registration is used,
        because a repetition changes nothing. Only this task registers the broker.
        """
        now = self._clock.monotonic()
        if self._store.write_failure is not None and now >= self._repeats_at:
            self._repeats_at = now + _REPEAT_S
            with contextlib.suppress(StorageFailure):  # the store counts and reports it
                self.core.registration.repeat()
        return self.core.control()

    def _renew_lease(self) -> None:
        """Renew the lease. A broker that has lost its id ends."""
        if not self.core.lease_keeper.serves():
            self.core.host.wake_refused()
        try:
            self.core.lease_keeper.renew()
        except DirectoryInUse as error:
            logger.error("stopping the broker: it lost its id: %s", error)
            self.has_failed = True
            self._stop_asked.set()

    def _record_store(self) -> None:
        """Record the state of the metadata store that this broker has read, for its next start."""
        if (mark := self._store.mark) is not None:
            StoreMarkFile(Path(self._facts.directory)).record(mark)

    def _release_id(self) -> None:
        with contextlib.suppress(IsologError):  # then it is free once its lease expires
            self._id_lock.release()

    def _put_proposals(self) -> None:
        """Wait a while for proposals, and put them on record."""
        if self.core.proposals.noted.wait(0.5):
            self.core.driver.run(self.core.proposals.putting())

    def heed_signals(self) -> None:
        """Make SIGTERM and SIGINT end :meth:`run`, even if they come before it begins."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._heed)

    def _heed(self, *_: object) -> None:
        self._stop_asked.set()

    def run(self) -> None:
        """Serve until a signal, or until no call came for too long. Then stop cleanly."""
        while not self._stop_asked.wait(0.5):
            limit = self._config.idle_seconds
            if limit and self.activity.idle_seconds() > limit:
                logger.info("stopping the broker: no call came for %g s", limit)
                break
        self.stop()

    def stop(self) -> None:
        """Stop. All acknowledged records are in the files afterwards."""
        if self._gateway is not None:
            self._gateway.stop()
        core = self.core
        with contextlib.suppress(IsologError):  # then the others see its lease end
            core.driver.run(core.leaving())
        self._stop_asked.set()
        self._network.stop_following()
        in_order = core.host.close()
        self._network.stop()
        self._server.stop("the broker stops", _GRACE_SECONDS)
        self._peer_server.stop("the broker stops", _GRACE_SECONDS)
        self._serving.stop()
        self._loop.close()
        self._peer_loop.close()
        if self._flight is not None:
            ended = threading.Thread(target=self._end_flight, name="shutdown", daemon=True)
            ended.start()
            ended.join(_GRACE_SECONDS)
        self._store.stop_waiting()
        self._tasks.join(_GRACE_SECONDS)
        if in_order:
            with contextlib.suppress(IsologError):  # on an error the next start cannot vouch
                core.registration.end()
        with contextlib.suppress(IsologError):  # then its lease ends by its duration
            core.lease_keeper.end()
        with contextlib.suppress(IsologError):  # the last one recorded is nearly as new
            self._record_store()
        self._store.close()
        self._release_id()
        self._board.close()
        self._authorizer.audit.close()
        if self._metrics is not None:
            self._metrics.stop()
        for address in (self.address, self.peer_address):
            if address.startswith(UNIX):
                Path(address.removeprefix(UNIX)).unlink(missing_ok=True)
        self._lock.release()
        logger.info("broker stopped")

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

    def _free_place(self, setting: str) -> tuple[str, str]:
        """Return the listening address of Flight or Kafka, and that for clients.

        Both are empty if the setting is.
        """
        listen: str = getattr(self._config, setting)
        if not listen:
            return "", ""
        # Flight and the gateway bind their sockets themselves, and Flight gives no reason for a
        # failure: so it is tried here first.
        with contextlib.closing(listening_socket(listen, setting)) as bound:
            port = port_of(bound)
        if listen.startswith(UNIX):
            Path(listen.removeprefix(UNIX)).unlink()
            return listen, listen
        return joined(split_address(listen)[0], port), self._named(port, listen)


def _warn_of_open_doors(config: BrokerConfig) -> None:
    """Warn of access by others on the network that is probably not intended."""
    for listen in filter(None, (config.listen, config.flight_listen, config.kafka_listen)):
        if is_local(listen):
            continue
        if not config.authentication:
            logger.warning("no authentication at %s: any client can read and write the log", listen)
        elif config.tls.cert is None:
            logger.warning("no TLS at %s: passwords and records are sent unencrypted", listen)


def _locked_id(board: SharedBoard, directory: LogDirectory, is_new: bool) -> IdLock:
    """Lock the directory's id. If another broker holds it, undo the marks of a new directory."""
    try:
        return board.lock_id(directory.broker_id, directory.path)
    except DirectoryInUse:
        if is_new:
            disown_directory(directory)
        raise


def _warn_of_few_files(partitions: int) -> None:
    limit = open_files_limit()
    needed = files_needed(partitions)
    if limit < needed + _CLIENTS_LEAST:
        logger.warning(
            "limit of open files is %d, but %d partitions and %d connections need %d. Raise it"
            " (`ulimit -n`, or `LimitNOFILE` of systemd)",
            limit,
            partitions,
            _CLIENTS_LEAST,
            needed + _CLIENTS_LEAST,
        )


def serve(config: BrokerConfig) -> NoReturn:
    """Run a broker, and end this process when it ends: with exit code 1 after an error, else 0.

    Prints ``isolog broker ready ADDRESS`` once it serves.
    """
    sys.setswitchinterval(_SWITCH_S)
    keep_free_memory()
    freeze_survivors()
    logging.basicConfig(
        level=config.log_level,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    logging.Formatter.converter = time.gmtime
    os.umask(0o077)  # the files of this process belong to its owner alone
    broker = Broker(config)
    broker.heed_signals()  # a reader of the next line may send a signal
    print(f"isolog broker ready {broker.address}", flush=True)
    broker.run()
    # A Flight stream that a silent client keeps open has a thread, for which the interpreter would
    # wait. Everything else is closed, so the process ends at once.
    logging.shutdown()
    os._exit(1 if broker.has_failed else 0)
