"""The rules of the etcd store, each against real etcd: lost answers, compaction, members away."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from isolog.errors import (
    DirectoryInUse,
    MetadataRefused,
    MetadataUnavailable,
    StorageFailure,
    UnsupportedFormat,
)
from isolog.testing import LocalEtcd
from spark_stream.cluster.stores import etcd as etcd_module
from spark_stream.cluster.stores import etcd_leases as etcd_leases_module
from spark_stream.cluster.stores.backends import EtcdAccess, EtcdBackend, EtcdPlace
from spark_stream.cluster.stores.etcd import EtcdStore
from spark_stream.cluster.stores.etcd_client import EtcdClient, encoded
from spark_stream.cluster.stores.etcd_leases import EtcdIdLock, EtcdLeases
from spark_stream.cluster.stores.leases import Renewal
from spark_stream.cluster.stores.store import FORM, Delete, Put
from spark_stream.environment import SystemClock, SystemMachine
from spark_stream.transport.tls import TlsFiles, client_context
from tests.certificates import HERE, Files
from tests.etcd import needs_etcd
from tests.support import eventually

pytestmark = needs_etcd


PATIENT_S = 20.0  # a large change takes seconds on a busy machine


class Lossy(EtcdClient):
    """A client whose next transactions are lost: before they are sent, or their answers.

    While ``has_no_watch``, watches fail.
    """

    has_no_watch = False

    def __init__(self, etcd: LocalEtcd) -> None:
        super().__init__(etcd.endpoints, PATIENT_S)
        self.lost: list[str] = []
        self.late: list[Any] = []
        self.meanwhile: list[Any] = []

    def write(self, path: str, asked: Any) -> Any:
        is_change = path == "/v3/kv/txn" and "request_put" in str(asked["success"])
        is_change |= path == "/v3/kv/txn" and "request_delete_range" in str(asked["success"])
        if not (is_change and self.lost):
            return super().write(path, asked)
        what = self.lost.pop(0)
        if what == "answer":
            super().write(path, asked)
        if what == "late":
            arrives = super().write
            self.late.append(lambda: arrives(path, asked))
        while self.meanwhile:
            self.meanwhile.pop(0)()
        raise MetadataUnavailable(f"the {what} was lost")

    def watch(self, *asked: Any) -> Any:
        if self.has_no_watch:
            raise MetadataUnavailable("there is no watch")
        return super().watch(*asked)


@pytest.fixture
def lossy(etcd: LocalEtcd) -> Lossy:
    return Lossy(etcd)


@pytest.fixture
def stores(
    etcd: LocalEtcd, lossy: Lossy, request: pytest.FixtureRequest
) -> Iterator[list[EtcdStore]]:
    """A store whose requests or answers are lost, and one without losses."""
    clients = (lossy, etcd.client(PATIENT_S))
    found = [EtcdStore(each, request.node.name) for each in clients]
    yield found
    for each in found:
        each.close()


@pytest.mark.rule("a change of metadata whose answer is lost", "cluster/stores/etcd.py")
@pytest.mark.parametrize("lost", [["answer"], ["request"], ["request", "answer"], ["answer"] * 2])
def test_a_change_whose_answer_is_lost_is_done_once(stores, lossy: Lossy, lost: list[str]):
    store, other = stores
    first = other.put("a", {"n": 1}, 0)
    lossy.lost = list(lost)
    version = store.put("a", {"n": 2}, first)
    assert other.get("a").version == version > first
    lossy.lost = list(lost)
    asked = [Put("a", {"n": 3}, first), Put("b", {}, 0), Put("c", {}, 7)]
    versions = store.put_many(asked)
    assert [each is not None for each in versions] == [False, True, False]
    assert other.get("b").version == versions[1]
    lossy.lost = list(lost)
    deletes = [Delete("a", version), Delete("b", 1), Delete("none", 5)]
    assert store.delete_many(deletes) == [True, False, False]
    assert [each.key for each in other.list("")] == ["b"]


def test_a_replaced_change_is_found_in_the_history(stores, lossy: Lossy):
    store, other = stores
    first = other.put("a", {"n": 1}, 0)
    lossy.lost = ["answer"]
    lossy.meanwhile = [lambda: other.put("b", {}, 0)]  # the head moves on, the record does not
    assert other.get("a").version < (store.put("a", {"n": 2}, first) or 0)


def test_a_change_with_a_lost_answer_is_resolved_after_other_changes(
    stores, lossy: Lossy, monkeypatch: pytest.MonkeyPatch
):
    store, other = stores
    first = other.put("a", {"n": 1}, 0)
    for lost, is_done in (("answer", True), ("request", False)):
        version = other.get("a").version
        lossy.lost = [lost]
        lossy.meanwhile = [lambda: other.put("a", {"n": 9}, other.get("a").version)] * 3
        done = store.put("a", {"n": 2}, version)
        assert (done is not None) == is_done
        assert other.get("a").value == {"n": 9}
        assert done is None or version < done < other.get("a").version
    assert first is not None
    monkeypatch.setattr(etcd_module, "_HEADS", 2)
    lossy.lost = ["answer"]
    lossy.meanwhile = [lambda: other.put("a", {"n": 9}, other.get("a").version)] * 3
    with pytest.raises(StorageFailure, match="its outcome is unknown"):
        store.put("a", {"n": 3}, other.get("a").version)


@pytest.mark.parametrize("deleted", [False, True])
def test_a_change_that_arrives_late_is_not_done_twice(stores, lossy: Lossy, deleted: bool):
    """It was retried in the meantime. Perhaps somebody has deleted the record since."""
    store, other = stores
    lossy.lost = ["late"]
    version = store.put("a", {"n": 1}, 0)
    assert other.get("a").version == version
    if deleted:
        assert other.delete("a", version)
    assert len(lossy.late) == 1
    lossy.late.pop()()
    found = other.get("a")
    assert found is None if deleted else found.version == version
    lossy.lost = ["late", "late", "answer"]
    asked = [Put("b", {"n": n}, 0) for n in range(1)] + [Put("c", {}, 0)]
    versions = store.put_many(asked)
    assert [other.get(each.key).version for each in asked] == versions
    for key, at in zip("bc", versions, strict=True):
        assert other.delete(key, at)
    while lossy.late:
        lossy.late.pop()()
    assert [other.get("b"), other.get("c")] == [None, None]


def test_changes_of_other_threads_continue_when_the_fence_moves(stores, lossy: Lossy):
    store, other = stores
    lossy.lost = ["answer", "request", "late"] * 5
    with ThreadPoolExecutor(8) as pool:
        versions = list(pool.map(lambda n: store.put(f"k{n}", {"n": n}, 0), range(100)))
    assert [other.get(f"k{n}").version for n in range(100)] == versions


class Counted(EtcdClient):
    """A client that counts its requests."""

    calls = 0

    def write(self, path: str, asked: Any) -> Any:
        self.calls += 1
        return super().write(path, asked)


def test_a_read_without_fresh_sends_no_request_for_a_cached_record(
    etcd: LocalEtcd,
):
    client = Counted(etcd.endpoints, 1.0)
    store = EtcdStore(client, "test_a_read_that_need_not_be_fresh")
    other = EtcdStore(etcd.client(), "test_a_read_that_need_not_be_fresh")
    with closing(store), closing(other):
        first = other.put("a", {"n": 1}, 0)
        assert store.get("a", fresh=False).version == first  # nothing follows the store yet
        second = other.put("a", {"n": 2}, first)
        store.changes(0)
        assert store.get("a", fresh=False).version == second
        own = store.put("a", {"n": 3}, second)
        asked = client.calls
        assert store.get("a", fresh=False).value == {"n": 3}
        assert client.calls == asked
        last = other.put("a", {"n": 4}, own)
        eventually(lambda: store.get("a", fresh=False).version == last)
        assert client.calls == asked
        assert other.delete("a", last)
        eventually(lambda: store.get("a", fresh=False) is None)
        assert store.get("a") is None


class Delayed(EtcdClient):
    """A client that does something before it returns its next answers."""

    def __init__(self, etcd: LocalEtcd) -> None:
        super().__init__(etcd.endpoints, 1.0)
        self.before_answers: list[Any] = []

    def write(self, path: str, asked: Any) -> Any:
        answer = super().write(path, asked)
        while self.before_answers:
            self.before_answers.pop()()
        return answer


@pytest.mark.parametrize("deleted", [False, True])
def test_answer_that_a_watch_has_overtaken_is_not_cached(etcd: LocalEtcd, deleted: bool):
    name = f"overtaken-{deleted}"
    client = Delayed(etcd)
    with closing(EtcdStore(client, name)) as store, closing(EtcdStore(etcd.client(), name)) as two:
        first = two.put("a", {"n": 1}, 0)
        since = store.changes(0).revision

        def change() -> None:
            if deleted:
                assert two.delete("a", first)
            else:
                assert two.put("a", {"n": 2}, first)
            eventually(lambda: store.changes(since, fresh=False).changed)

        client.before_answers = [change]
        assert store.get("a").value == {"n": 1}
        found = store.get("a", fresh=False)
        assert found is None if deleted else found.value == {"n": 2}


def compact(etcd: LocalEtcd, store: EtcdStore) -> None:
    """Compact the history, as etcd's auto-compaction does."""
    client = etcd.client()
    revision = store.changes(0).revision
    client.write("/v3/kv/compaction", {"revision": str(revision), "physical": True})
    client.close()


def test_after_a_compaction_a_late_caller_gets_all_records(stores, etcd: LocalEtcd, lossy: Lossy):
    store, other = stores
    other.put("a", {}, 0)
    since = store.changes(0).revision
    watch = eventually(lambda: store._feed._watch)
    lossy.has_no_watch = True
    watch.end()  # its connection is lost, and in the meantime …
    gone = other.put("gone", {}, 0)
    other.delete("gone", gone)
    other.put("b", {}, 0)
    compact(etcd, other)
    lossy.has_no_watch = False
    told = store.changes(since)
    assert {key for key, record in told.changed.items() if record} == {"a", "b"}
    since = told.revision
    other.put("c", {}, 0)
    eventually(lambda: set(store.changes(since).changed) >= {"c"})


def test_many_changes_and_large_records_are_written(stores):
    store, _ = stores
    versions = store.put_many([Put(f"{number}", {"n": number}, 0) for number in range(121)])
    assert None not in versions
    large = "x" * (700 << 10)
    assert None not in store.put_many([Put(f"l{number}", {"x": large}, 0) for number in range(3)])
    with pytest.raises(MetadataRefused, match=r"larger than max|too large"):
        store.put("huge", {"x": large * 3}, 0)
    assert store.get("huge") is None
    assert len(store.changes(0).changed) == 124


def test_an_answer_of_another_cluster_or_an_earlier_term_is_refused(etcd: LocalEtcd):
    client = etcd.client()
    client.read("/v3/kv/range", {"key": "YQ=="})
    header = {"cluster_id": client.history.known.cluster, "raft_term": str(client.history.term)}
    client.check_header("e", header)
    for wrong in ({"cluster_id": "7"}, {"raft_term": str(client.history.term - 1)}):
        with pytest.raises(MetadataUnavailable):
            client.check_header("e", header | wrong)
    client.close()


def test_calls_of_a_closed_store_fail(etcd: LocalEtcd):
    store = EtcdStore(etcd.client(), "closed")
    since = store.changes(0).revision
    store.close()
    with pytest.raises(StorageFailure):
        store.changes(since)


def test_a_renewal_whose_answer_was_lost_keeps_the_lease(etcd: LocalEtcd, lossy: Lossy):
    board = EtcdLeases(lossy, "renewals", SystemClock(), SystemMachine(), 3.0)
    place = board.take_place("b", "first", 10.0)
    lossy.lost = ["answer"]
    assert place.write(1)
    lossy.lost = ["request"]
    assert place.write(2)
    later = board.take_place("b", "second", 10.0)
    assert not place.write(3)
    place.clear()
    assert later.write(1)
    assert board.read("b") == Renewal("second", 1, 10.0)
    board.close()


def test_while_no_member_answers_callers_do_not_pile_up(etcd: LocalEtcd):
    """One detects that no member answers. The others fail immediately until one does."""
    client = etcd.client(1.0)
    silent = socket.socket()
    silent.bind(("127.0.0.1", 0))
    silent.listen(64)  # takes connections, and answers nothing
    host, port = silent.getsockname()
    away = EtcdClient([f"{host}:{port}"], 0.3)
    asked = {"key": encoded(b"a")}

    def ask() -> float:
        begun = time.monotonic()
        with pytest.raises(MetadataUnavailable):
            away.read("/v3/kv/range", asked)
        return time.monotonic() - begun

    assert ask() >= 3 * 0.3
    with ThreadPoolExecutor(20) as pool:
        found = sorted(pool.map(lambda _: ask(), range(200)))
    assert sum(each > 0.2 for each in found) <= 20, "they took turns"
    away._endpoints[:] = etcd.endpoints
    eventually(lambda: answers(away, asked))
    assert all(answers(away, asked) for _ in range(20))
    for each in (client, away, silent):
        each.close()


def answers(client: EtcdClient, asked: Any) -> bool:
    try:
        return "header" in client.read("/v3/kv/range", asked)
    except MetadataUnavailable:
        return False


# -- the format of the records ---------------------------------------------------------------------


def test_a_cluster_in_another_format_is_refused_and_not_changed(etcd: LocalEtcd):
    place = EtcdPlace(tuple(etcd.endpoints), "another-form")
    backend = EtcdBackend(place, EtcdAccess(), SystemClock(), SystemMachine(), 6.0)
    for _ in range(2):  # it is noted, and then found
        backend.open_store().close()
    put = {"key": encoded(b"/another-form/form"), "value": encoded(str(FORM + 1).encode())}
    with closing(etcd.client()) as client:
        written = client.write("/v3/kv/put", put)["header"]["revision"]
        refused = f"another-form .*format {FORM + 1}.* reads {FORM}"
        with pytest.raises(UnsupportedFormat, match=refused):
            backend.open_store()
        after = client.read("/v3/kv/range", {"key": encoded(b"a")})["header"]["revision"]
    assert after == written


# -- authentication --------------------------------------------------------------------------------


@pytest.mark.full
def test_etcd_is_reached_with_tls_a_certificate_a_user_and_a_password(tmp_path: Path):
    files = Files(tmp_path)
    with LocalEtcd(1, tmp_path, lambda name: files.issue(name, *HERE)) as etcd:
        plain = EtcdClient(etcd.endpoints, 1.0)
        with pytest.raises(MetadataUnavailable):
            EtcdStore(plain, "tls").get("a")
        stranger = client_context(TlsFiles(ca=files.ca))
        with pytest.raises(MetadataUnavailable):
            EtcdStore(EtcdClient(etcd.endpoints, 1.0, lambda: stranger), "tls").get("a")
        with closing(etcd.client()) as setting_up:
            for path, asked in (
                ("user/add", {"name": "root", "password": "secret"}),
                ("role/add", {"name": "root"}),
                ("user/grant", {"user": "root", "role": "root"}),
                ("enable", {}),
            ):
                setting_up.write(f"/v3/auth/{path}", asked)
        with pytest.raises(MetadataRefused, match=r"permission denied.*metadata_user"):
            EtcdStore(etcd.client(), "tls").get("a")
        with pytest.raises(MetadataRefused, match="invalid user ID or password"):
            EtcdStore(etcd.client(credential=("root", "wrong")), "tls").get("a")
        with closing(EtcdStore(etcd.client(credential=("root", "secret")), "tls")) as store:
            since = store.changes(0).revision
            version = store.put("a", {"n": 1}, 0)
            assert store.changes(since).changed["a"].version == version
            (member,) = etcd.members
            member.kill()  # it drops its tokens
            etcd.restore()
            eventually(lambda: store.get("a").version == version)
            assert store.put("a", {"n": 2}, version)


def test_an_outage_is_logged_when_it_begins_and_when_it_ends(caplog):
    with LocalEtcd(1) as etcd, closing(EtcdStore(etcd.client(timeout_s=0.5), "logged")) as store:

        def answers() -> bool:
            with suppress(MetadataUnavailable):
                return store.get("a") is None
            return False

        etcd.members[0].kill()
        assert not any(answers() for _ in range(3))
        etcd.restore()
        eventually(answers)
    told = [each.message for each in caplog.records if each.levelname == "WARNING"]
    assert [each.split(":")[0].split(", after")[0] for each in told] == [
        "no member of etcd answers",
        "etcd answers again",
    ]


# -- the lock of an id -----------------------------------------------------------------------------

LEASE_S = 1.2


class Boot:
    """A machine with this boot id."""

    def __init__(self, boot_id: str | None) -> None:
        self._boot_id = boot_id

    def boot_id(self) -> str | None:
        return self._boot_id


@pytest.fixture
def board_of(etcd: LocalEtcd, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Opens the board as a broker on the machine with this boot id does."""
    opened: list[EtcdLeases] = []

    def make(boot_id: str | None, lease_s: float = LEASE_S) -> EtcdLeases:
        found = EtcdLeases(etcd.client(), request.node.name, SystemClock(), Boot(boot_id), lease_s)
        opened.append(found)
        return found

    yield make
    for each in opened:
        each.close()


@pytest.mark.rule("one broker for each id, on many hosts", "cluster/stores/etcd_leases.py")
@pytest.mark.parametrize("with_lease", [False, True])
def test_the_second_broker_of_an_id_is_refused(board_of, tmp_path: Path, with_lease: bool):
    first, second = board_of("one"), board_of("two")
    copy = tmp_path / "copy"
    copy.mkdir()
    lock = first.lock_id("b", tmp_path)
    stop = threading.Event()
    if with_lease:  # from then on, renewals of the lease are the signs of life
        place = first.take_place("b", "start", LEASE_S)
        renewing = threading.Thread(
            target=lambda: [place.write(n) for n in range(1, 1000) if not stop.wait(0.1)]
        )
        renewing.start()
    for board in (second, first):
        with pytest.raises(DirectoryInUse, match="broker b of this store runs already"):
            board.lock_id("b", copy)
    other = second.lock_id("c", copy)
    if with_lease:
        stop.set()
        renewing.join()
        place.clear()
    lock.release()
    again = second.lock_id("b", copy)
    for each in (other, again):
        each.release()


def test_a_restarted_broker_gets_its_id_immediately(board_of, tmp_path: Path):
    first = board_of("one")
    first.lock_id("b", tmp_path)
    first.take_place("b", "start", LEASE_S)  # and dies without releasing its id
    begun = time.monotonic()
    again = board_of("one")
    again.lock_id("b", tmp_path)
    assert again.take_place("b", "start-2", LEASE_S).write(1)
    assert time.monotonic() - begun < LEASE_S
    with pytest.raises(DirectoryInUse):
        first.take_place("b", "start", LEASE_S)


@pytest.mark.quick("two")
@pytest.mark.parametrize("boot_id", ["two", None])
def test_an_id_is_free_after_a_lease_without_a_renewal(
    board_of, tmp_path: Path, boot_id: str | None
):
    first = board_of("one")
    first.lock_id("b", tmp_path)
    place = first.take_place("b", "start", LEASE_S)
    assert place.write(1)
    second = board_of(boot_id)
    begun = time.monotonic()
    second.lock_id("b", tmp_path)
    assert time.monotonic() - begun >= LEASE_S
    assert not place.write(2), "it is another broker's by now, which may have no lease yet"
    with pytest.raises(DirectoryInUse):
        first.take_place("b", "start", LEASE_S)
    assert second.take_place("b", "start-2", LEASE_S).write(1)


class SteppedTime:
    """The time of a wait: each sleep moves it, and calls ``step`` with the time that has passed."""

    def __init__(self, step: Callable[[float], object]) -> None:
        self._now = 0.0
        self._step = step

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds
        self._step(self._now)


def test_lock_id_waits_as_long_as_the_lease_of_the_holder_lasts(
    board_of, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A holder with a long lease renews it seldom. In between no other process gets its id."""
    first, second = board_of("one", 10 * LEASE_S), board_of("two", LEASE_S)
    first.lock_id("b", tmp_path)
    place = first.take_place("b", "start", 10 * LEASE_S)
    renewed: list[bool] = []

    def renew_late(now: float) -> None:
        if now > 5 * LEASE_S and not renewed:
            renewed.append(place.write(1))

    monkeypatch.setattr(etcd_leases_module, "time", SteppedTime(renew_late))
    with pytest.raises(DirectoryInUse):
        second.lock_id("b", tmp_path)
    assert renewed == [True]
    assert place.write(2)


@pytest.mark.parametrize("of", ["the lease", "the lock"])
def test_lock_id_is_refused_by_a_renewal_after_its_last_look(
    board_of, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str
):
    """A holder that wakes up between the last look and the put of another still has its id."""
    first, second = board_of("one"), board_of("two")
    lock = first.lock_id("b", tmp_path)
    place = first.take_place("b", "start", LEASE_S)
    monkeypatch.setattr(etcd_leases_module, "time", SteppedTime(lambda _: None))
    put = EtcdIdLock._put

    def wake_up_first(self: EtcdIdLock, version: int, conditions: Sequence[Any] = ()) -> bool:
        monkeypatch.setattr(EtcdIdLock, "_put", put)
        assert place.write(1) if of == "the lease" else lock._put(version)
        return put(self, version, conditions)

    monkeypatch.setattr(EtcdIdLock, "_put", wake_up_first)
    with pytest.raises(DirectoryInUse):
        second.lock_id("b", tmp_path)
    assert place.write(2)


@pytest.mark.quick("1.2")
@pytest.mark.parametrize("longer_s", [LEASE_S, 2 * LEASE_S])
def test_a_check_for_running_brokers_ends_paused_ones(
    board_of, tmp_path: Path, longer_s: float, caplog: pytest.LogCaptureFixture
):
    """The leases of the others may last longer than the observer's own."""
    copy = tmp_path / "copy"
    copy.mkdir()
    first, second, observer = board_of("one", longer_s), board_of("two"), board_of(None)
    first.lock_id("paused", tmp_path)
    place = first.take_place("paused", "start", longer_s)
    assert place.write(1)
    lock = second.lock_id("runs", copy)
    begun = time.monotonic()
    assert observer.running() == ["runs"]
    assert "broker paused did not shut down cleanly" in caplog.text
    assert "broker runs" not in caplog.text
    assert time.monotonic() - begun >= longer_s
    assert not place.write(2)
    with pytest.raises(DirectoryInUse, match="restored or migrated") as lost:
        first.take_place("paused", "start", longer_s)
    assert lost.value.hint == "Start the broker again."
    lock.release()
    assert observer.running() == []


# -- three members ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEtcd]:
    with LocalEtcd(3, tmp_path_factory.mktemp("three")) as found:
        yield found


@pytest.mark.full
@pytest.mark.parametrize("name", ["leader", "follower"])
def test_a_paused_member_loses_no_change(three: LocalEtcd, name: str):
    stores = [EtcdStore(three.client(), f"still-{name}") for _ in range(2)]
    written: list[int] = []
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            try:
                record = stores[0].get("n")
                at = 0 if record is None else record.version
                if stores[0].put("n", {"n": len(written)}, at) is not None:
                    written.append(len(written))
            except StorageFailure:
                continue  # the outcome is unknown. The next read does

    thread = threading.Thread(target=write)
    thread.start()
    leader = three.leader()
    paused = leader if name == "leader" else next(e for e in three.members if e is not leader)
    eventually(lambda: len(written) > 10)
    paused.pause()
    seen = len(written)
    eventually(lambda: len(written) > seen + 10)
    paused.resume()
    seen = len(written)
    eventually(lambda: len(written) > seen + 10)
    stop.set()
    thread.join()
    last = stores[1].get("n")
    assert last is not None
    assert last.value["n"] >= len(written) - 1
    since = stores[1].changes(0).revision
    stores[0].put("after", {}, 0)
    assert "after" in stores[1].changes(since).changed
    for each in stores:
        each.close()


@pytest.mark.full
def test_without_a_quorum_calls_fail_in_time_and_a_watch_continues_later(
    three: LocalEtcd, tmp_path: Path
):
    store, other = (EtcdStore(three.client(0.5), "quorum") for _ in range(2))
    since = store.changes(0).revision
    other.put("a", {}, 0)
    assert "a" in store.changes(since).changed
    for each in three.members[:2]:
        each.pause()
    begun = time.monotonic()
    for act in (
        lambda: store.get("a"),
        lambda: store.put("b", {}, 0),
        lambda: store.changes(since),
    ):
        with pytest.raises(StorageFailure):
            act()
    assert time.monotonic() - begun < 60
    for each in three.members[:2]:
        each.resume()

    def written() -> bool:
        try:
            return other.put("c", {}, 0) is not None or other.get("c") is not None
        except StorageFailure:
            return False

    eventually(written)

    def told() -> bool:
        try:
            return "c" in store.changes(since).changed
        except MetadataUnavailable:  # others fail immediately while one of them tries
            return False

    eventually(told)
    store.close()
    other.close()
