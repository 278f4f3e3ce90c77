"""The brokers of the flights demo, and the death of one of them.

By default the demo starts three brokers, as processes that share a metadata store, and each
partition has a replica on all of them. The store is a file, or three members of etcd. With one
broker the log is a directory whose broker is started on demand. With ``--bootstrap`` the demo uses
existing brokers, which keep running.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import isolog
from isolog.testing import LocalCluster, LocalEtcd

REPLICAS = 3
"""The replicas of each partition, if there are enough brokers."""
WAIT_S = 60.0
POLL_S = 0.05


@dataclass(frozen=True)
class Brokers:
    """The place of a run's log. ``cluster``: the run's own brokers, if there are several."""

    place: dict[str, str]
    """The option of a query, or the argument of ``connect``, with the place of the log."""
    replicas: int = 1
    """The number of replicas of a partition."""
    cluster: LocalCluster | None = None
    etcd: LocalEtcd | None = None
    """The members of etcd with the cluster's metadata, if it is in etcd."""


def open_brokers(
    folder: Path, count: int, bootstrap: str | None, *, secure: bool = False, etcd: bool = False
) -> AbstractContextManager[Brokers]:
    """The brokers at ``bootstrap``, or ``count`` new brokers in the folder.

    ``secure``: they use TLS and authentication, with a profile in the folder. ``etcd``: their
    metadata is in three members of etcd.
    """
    return _brokers(folder, count, bootstrap, secure, etcd)


@contextmanager
def _brokers(
    folder: Path, count: int, bootstrap: str | None, secure: bool, etcd: bool
) -> Iterator[Brokers]:
    if bootstrap:
        with isolog.connect(bootstrap) as log:
            alive = sum(each.alive for each in log.cluster().brokers)
        yield Brokers({"bootstrap": bootstrap}, min(alive, REPLICAS))
    elif count == 1:
        yield Brokers({"path": str(folder)})
    else:
        with ExitStack() as ended:
            conf = _secured(folder, count) if secure else {}
            members = ended.enter_context(LocalEtcd()) if etcd else None
            if members is not None:
                conf["metadata"] = members.url("flights")
            cluster = ended.enter_context(
                LocalCluster(count, cuttable=False, folder=folder, conf=conf)
            )
            place = {"bootstrap": cluster.bootstrap}
            if secure:
                store = conf.get("metadata", folder / "metadata" / "metadata.sqlite")
                place = {"profile": str(_profile(folder, cluster.bootstrap, str(store)))}
            yield Brokers(place, min(count, REPLICAS), cluster, members)
            for number, broker in cluster.brokers.items():
                if broker.alive:
                    cluster.stop(number)


def _isolog(*arguments: str, **variables: str) -> None:
    command = [sys.executable, "-m", "isolog", *arguments]
    subprocess.run(command, check=True, capture_output=True, env=os.environ | variables)


def _secured(folder: Path, count: int) -> dict[str, object]:
    """The settings of brokers with TLS and authentication, with one certificate for all."""
    certs = folder / "certs"
    names = ["localhost", "127.0.0.1", *(str(number) for number in range(1, count + 1))]
    _isolog("certs", "create", str(certs), "brokers", *(f"--host={name}" for name in names))
    pair = {"cert": str(certs / "brokers.pem"), "key": str(certs / "brokers-key.pem")}
    return {
        "authentication": True,
        "super_users": ["admin"],
        "tls": pair,
        "peer_tls": pair | {"ca": str(certs / "ca.pem")},
    }


def _profile(folder: Path, bootstrap: str, store: str) -> Path:
    """The profile of a user with exactly the permissions of the demo."""
    ca = str(folder / "certs" / "ca.pem")
    password, admins = secrets.token_urlsafe(), secrets.token_urlsafe()
    _isolog("user", "add", "admin", "--metadata", store, ISOLOG_NEW_PASSWORD=admins)

    def administer(*arguments: str) -> None:
        where = {"ISOLOG_BOOTSTRAP": bootstrap, "ISOLOG_TLS_CA": ca, "ISOLOG_PASSWORD": admins}
        _isolog("--user", "admin", *arguments, ISOLOG_NEW_PASSWORD=password, **where)

    administer("user", "add", "flights")
    administer("acl", "allow", "flights", "all", "topic:flights")
    administer("acl", "allow", "flights", "write", "transaction:*")
    profile = folder / "profile.toml"
    profile.touch(mode=0o600)
    profile.write_text(
        f'bootstrap = "{bootstrap}"\ntls.ca = "{ca}"\nuser = "flights"\npassword = "{password}"\n'
    )
    return profile


@contextmanager
def open_console(place: dict[str, str]) -> Iterator[str]:
    """The address of a console of the brokers at a place, as `isolog console` serves it."""
    [(option, where)] = place.items()
    before = ["--profile", where] if option == "profile" else []
    after = [] if option == "profile" else [f"--{option}", where]
    command = [sys.executable, "-m", "isolog", *before, "console", *after]
    console = subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert console.stdout is not None
        line = console.stdout.readline().strip()  # empty if it has ended with an error
        if not line:
            raise SystemExit("the console did not start")
        yield line.split()[-1]
    finally:
        console.terminate()
        console.wait(WAIT_S)


def stop_brokers(folder: Path) -> bool:
    """End brokers of the log in the folder that a killed run left. Return whether there were any.

    Each broker of a cluster has a directory in it.
    """
    directories = [*folder.glob("broker-*/")] or ([folder] if folder.exists() else [])
    stop = [sys.executable, "-m", "isolog", "broker", "stop", "--dir"]
    ended = [
        subprocess.run([*stop, each], capture_output=True, check=False).returncode == 0
        for each in directories
    ]
    return any(ended)


class LostLeader:
    """The broker that leads a topic's first partition, killed by ``kill -9`` on creation.

    If the metadata is in etcd, its leader is killed too. ``partitions``: those that the broker led.
    ``heirs``: the brokers that lead them ``seconds`` later.
    """

    def __init__(self, brokers: Brokers, log: isolog.Log, topic: str) -> None:
        assert brokers.cluster is not None
        self._cluster, self._log, self._topic = brokers.cluster, log, topic
        self._etcd = brokers.etcd
        self.member = "" if self._etcd is None else self._etcd.leader().name
        before = log.describe(topic).partitions
        leader = before[0].leader
        assert leader is not None
        self.broker = int(leader)
        self.partitions = [each.partition for each in before if each.leader == leader]
        killed = time.monotonic()
        self._cluster.kill(self.broker)
        if self._etcd is not None:
            self._etcd.leader().kill()
        self._wait(lambda found: found.error is None and found.leader not in (None, leader))
        self.seconds = time.monotonic() - killed
        after = log.describe(topic).partitions
        self.heirs = sorted({str(after[number].leader) for number in self.partitions})
        self.away = True

    def bring_back(self) -> float:
        """Start it again. Return the seconds until all replicas were in sync."""
        began = time.monotonic()
        if self._etcd is not None:
            self._etcd.restore()
        self._cluster.restart(self.broker)
        self._wait(lambda found: found.error is None and len(found.isr) == len(found.replicas))
        self.away = False
        return time.monotonic() - began

    def _wait(self, holds: Callable[[isolog.PartitionDescription], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not all(map(holds, self._log.describe(self._topic).partitions)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the replicas of {self._topic} did not recover in {WAIT_S} s")
            time.sleep(POLL_S)
