"""An etcd that was restored from an earlier copy, or is another cluster, is METADATA_LOST."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from isolog.errors import IsologError, MetadataLost, UnsupportedFormat
from isolog.testing import LocalEtcd
from spark_stream.cluster.stores.backends import EtcdAccess, EtcdBackend, EtcdPlace
from spark_stream.cluster.stores.etcd import EtcdStore
from spark_stream.cluster.stores.etcd_client import RANGE, EtcdClient, decoded, encoded
from spark_stream.cluster.stores.etcd_history import (
    EtcdHistory,
    FoundEtcd,
    KnownEtcd,
    difference,
    is_replaced,
)
from spark_stream.cluster.stores.store import DurableStore, Put
from spark_stream.environment import SystemClock, SystemMachine
from tests.etcd import copy_data, exchange_data, needs_etcd, put_back_data
from tests.support import eventually

pytestmark = needs_etcd


@pytest.fixture
def own(tmp_path: Path) -> Iterator[LocalEtcd]:
    """One member that this test may restore."""
    with LocalEtcd(1, tmp_path) as found:
        yield found


def outcome(call: Callable[[], object]) -> str:
    """Return the code of a call's error, or "done"."""
    try:
        call()
    except IsologError as error:
        return error.code
    return "done"


def lost(call: Callable[[], object]) -> None:
    """Wait while etcd starts. Then the call must fail with METADATA_LOST."""
    found = eventually(lambda: (code := outcome(call)) != "METADATA_UNAVAILABLE" and code)
    assert found == "METADATA_LOST"


@pytest.mark.rule("a restored metadata store under running brokers", "cluster/stores/etcd.py")
def test_store_rejects_changes_after_a_restore_of_etcd(own: LocalEtcd, tmp_path: Path):
    with closing(EtcdStore(own.client(), "restored")) as store:
        first = store.put("a", {"n": 1}, 0)
        store.changes(0)
        copy_data(own, tmp_path / "copy")
        second = store.put("a", {"n": 2}, first)
        put_back_data(own, tmp_path / "copy")
        lost(lambda: store.put("a", {"n": 3}, second))
        lost(lambda: store.put("b", {}, 0))
        for call in (lambda: store.get("a"), lambda: store.list(""), lambda: store.changes(0)):
            with pytest.raises(MetadataLost, match="revision"):
                call()
        assert isinstance(store.lost, MetadataLost)
    with closing(EtcdStore(own.client(), "restored")) as another:
        assert another.get("b") is None
        assert another.get("a").value == {"n": 1}


KNOWN = KnownEtcd("c", "i", ("h",), 100, 90, "m")
SAME = FoundEtcd("c", 2, "i", 120, 110, "m")


@pytest.mark.rule(
    "the detection of lost changes of a metadata store", "cluster/stores/etcd_history.py"
)
@pytest.mark.parametrize(
    ("changed", "sign"),
    [
        ({}, None),
        ({"mark": None}, None),
        ({"term": 1}, None),
        ({"revision": 100, "head": 90}, None),
        ({"revision": 99, "head": 90}, "revision is 99, and was 100"),
        ({"cluster": "d"}, "cluster id"),
        ({"identity": ""}, "identity"),
        ({"identity": "j"}, "identity"),
        ({"head": 89}, "last change has revision 89"),
        ({"mark": "n"}, "change of revision 90 is another"),
    ],
)
def test_a_changed_identity_or_revision_shows_lost_changes(
    changed: dict[str, object], sign: str | None
):
    found = difference(KNOWN, replace(SAME, **changed))
    assert found is None if sign is None else sign in found
    assert difference(KnownEtcd(), replace(SAME, **changed)) is None


def test_records_are_replaced_if_their_identity_was_never_seen():
    found = {name: is_replaced(KNOWN, replace(SAME, identity=name)) for name in ("", "h", "i", "j")}
    assert found == {"": False, "h": False, "i": False, "j": True}


def backend(etcd: LocalEtcd, name: str) -> EtcdBackend:
    place = EtcdPlace(tuple(etcd.endpoints), name)
    return EtcdBackend(place, EtcdAccess(), SystemClock(), SystemMachine(), 6.0)


def filled(etcd: LocalEtcd, tmp_path: Path, name: str) -> str:
    """Make a store, copy etcd, and change the store. Return the mark of the last state."""
    with closing(backend(etcd, name).open_store()) as store:
        first = store.put("a", {"n": 1}, 0)
        copy_data(etcd, tmp_path / "copy")
        store.put("a", {"n": 2}, first)
        return store.mark


def opened(etcd: LocalEtcd, name: str, mark: str) -> None:
    backend(etcd, name).open_store(mark).close()


def test_a_restart_detects_a_restore_of_etcd(own: LocalEtcd, tmp_path: Path):
    mark = filled(own, tmp_path, "restart")
    opened(own, "restart", mark)
    put_back_data(own, tmp_path / "copy")
    lost(lambda: opened(own, "restart", mark))
    with closing(own.client()) as client:  # other users of etcd move its revision
        for _ in range(20):
            client.write("/v3/kv/put", {"key": "YQ==", "value": ""})
    lost(lambda: opened(own, "restart", mark))
    with closing(EtcdStore(own.client(), "restart")) as ignorant:
        for number in range(20):
            ignorant.put(f"{number}", {}, 0)
    lost(lambda: opened(own, "restart", mark))


def test_restart_accepts_records_that_isolog_replaced(own: LocalEtcd, tmp_path: Path):
    mark = filled(own, tmp_path, "replaced")
    put_back_data(own, tmp_path / "copy")
    lost(lambda: opened(own, "replaced", mark))
    with closing(EtcdStore(own.client(), "replaced")) as store:
        store.replace_identity()
    with closing(backend(own, "replaced").open_store(mark)) as store:
        later = store.mark
        assert store.put("b", {}, 0)
    opened(own, "replaced", later)
    put_back_data(own, tmp_path / "copy")  # it has the identity from before the replacement
    lost(lambda: opened(own, "replaced", later))


@pytest.mark.full  # test_a_store_that_met_another_etcd_... is quicker
def test_store_works_again_once_the_earlier_etcd_is_back(own: LocalEtcd, tmp_path: Path):
    with closing(EtcdStore(own.client(), "regained")) as store:
        copy_data(own, tmp_path / "older")
        version = store.put("a", {}, 0)
        since = store.changes(0).revision
        copy_data(own, tmp_path / "newer")
        put_back_data(own, tmp_path / "older")
        # A change whose outcome is unknown writes to etcd, and may pass the revision of the newer.
        lost(lambda: store.get("a"))
        lost(lambda: store.put("b", {}, 0))
        put_back_data(own, tmp_path / "newer")
        eventually(lambda: outcome(lambda: store.get("a")) == "done")
        assert store.lost is None
        assert store.get("a").version == version
        assert store.put("b", {}, 0) is not None
        assert set(store.changes(since).changed) == {"b"}


def test_a_store_with_a_later_head_makes_no_change(own: LocalEtcd, tmp_path: Path):
    """A restore may raise the revision (``--bump-revision``)."""
    with closing(EtcdStore(own.client(), "bumped")) as store:
        first = store.put("a", {"n": 1}, 0)
        copy_data(own, tmp_path / "copy")
        store.put("b", {}, 0)
        put_back_data(own, tmp_path / "copy")
        with closing(own.client()) as client:
            eventually(
                lambda: outcome(lambda: client.read("/v3/kv/range", {"key": "YQ=="})) == "done"
            )
            for _ in range(20):
                client.write("/v3/kv/put", {"key": "YQ==", "value": ""})
        lost(lambda: store.put("a", {"n": 3}, first))
    with closing(EtcdStore(own.client(), "bumped")) as another:
        assert another.get("a").value == {"n": 1}


@pytest.mark.full  # test_store_rejects_changes_after_a_restore_of_etcd
def test_changes_of_a_restored_etcd_are_never_returned(own: LocalEtcd, tmp_path: Path):
    with closing(EtcdStore(own.client(), "feed")) as store:
        store.put("a", {"n": 1}, 0)
        since = store.changes(0).revision
        copy_data(own, tmp_path / "copy")
        store.put("b", {}, 0)
        eventually(lambda: "b" in store.changes(since, fresh=False).changed)
        put_back_data(own, tmp_path / "copy")
        with closing(EtcdStore(own.client(), "feed", accepts_loss=True)) as ignorant:
            for number in range(20):
                eventually(lambda n=number: outcome(lambda: ignorant.put(f"{n}", {}, 0)) == "done")
        eventually(lambda: store.lost is not None)
        with pytest.raises(MetadataLost):
            store.changes(since, fresh=False)


def test_one_member_of_another_cluster_is_skipped(
    own: LocalEtcd, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "other").mkdir()
    with LocalEtcd(1, tmp_path / "other") as other:
        client = EtcdClient([*own.endpoints, *other.endpoints], 1.0)
        with closing(EtcdStore(client, "members")) as store:
            store.compare(None)
            version = store.put("a", {}, 0)
            since = store.changes(0).revision
            client.turn_from(own.endpoints[0])
            assert outcome(lambda: store.put("a", {}, version)) in ("done", "METADATA_UNAVAILABLE")
            eventually(lambda: store.put("b", {}, 0) is not None or store.get("b") is not None)
            assert store.lost is None
            assert loss_key(own, "members") == loss_key(other, "members") == ""
            for _ in range(5):  # each comparison starts with the member of the other cluster
                client.turn_from(own.endpoints[0])
                store.compare(store.mark)
            assert "METADATA_LOST" not in caplog.text
            own.members[0].kill()
            eventually(lambda: loss_key(other, "members"))
            own.restore()
            eventually(lambda: outcome(lambda: store.changes(since)) == "done")
            assert set(store.changes(since).changed) >= {"b"}
            assert loss_key(own, "members") == ""


@pytest.mark.full  # test_one_member_of_another_cluster_is_skipped has the same
def test_a_restart_skips_a_first_member_of_another_cluster(own: LocalEtcd, tmp_path: Path):
    (tmp_path / "other").mkdir()
    with LocalEtcd(1, tmp_path / "other") as other:
        mark = filled(own, tmp_path, "first")
        both = EtcdPlace((*other.endpoints, *own.endpoints), "first")
        place = replace(backend(own, "first"), place=both)
        with closing(place.open_store(mark)) as store:
            assert store.get("a").value == {"n": 2}
        with closing(EtcdStore(own.client(), "first")) as store:
            store.replace_identity()
        place = replace(backend(own, "first"), place=both)
        with closing(place.open_store(mark)) as store:
            assert store.get("a").value == {"n": 2}


def test_a_store_that_met_another_etcd_accepts_its_own_again_after_a_compaction(
    own: LocalEtcd, tmp_path: Path
):
    """Another broker wrote after this store's last known change, which is compacted away."""
    (tmp_path / "other").mkdir()
    with (
        LocalEtcd(1, tmp_path / "other") as other,
        closing(EtcdStore(EtcdClient([*own.endpoints, *other.endpoints], 1.0), "gone")) as store,
        closing(EtcdStore(own.client(), "gone")) as another,
    ):
        store.compare(None)
        store.put("a", {}, 0)
        own.members[0].pause()
        lost(lambda: store.compare(store.mark))
        own.members[0].resume()
        revision = eventually(lambda: another.put("b", {}, 0))
        with closing(own.client()) as client:
            client.write("/v3/kv/compaction", {"revision": str(revision), "physical": True})
        store.compare(store.mark)
        assert store.lost is None
        assert store.get("b").value == {}


def test_board_fails_after_a_restore_of_etcd(own: LocalEtcd, tmp_path: Path):
    place = backend(own, "board")
    with closing(place.open_store()) as store, closing(place.open_board()) as board:
        copy_data(own, tmp_path / "copy")
        lease = board.take_place("1", "x", 6.0)
        store.put("a", {}, 0)
        put_back_data(own, tmp_path / "copy")
        lost(lambda: lease.write(1))
        assert store.lost is not None
        with pytest.raises(MetadataLost):
            store.get("a")


def loss_key(etcd: LocalEtcd, name: str) -> str:
    """Return the value of the loss key, or ""."""
    with closing(etcd.client()) as client:
        found = client.read(RANGE, {"key": encoded(f"/{name}/lost".encode())})
    return decoded(found["kvs"][0]["value"]).decode() if "kvs" in found else ""


def followed(store: DurableStore) -> DurableStore:
    """Return the store after the start of its watch, which a running broker has."""
    store.changes(0)
    return store


def restored_under(store: DurableStore, etcd: LocalEtcd, name: str, tmp_path: Path) -> str:
    """Restore etcd under a broker that runs. Return the mark of one that was stopped before."""
    store.put("a", {"n": 1}, 0)
    with closing(backend(etcd, name).open_store()) as stopped:
        mark = stopped.mark
    copy_data(etcd, tmp_path / "copy")
    store.put("b", {"n": 1}, 0)
    exchange_data(etcd, tmp_path / "copy", tmp_path / "earlier")
    return mark


@pytest.mark.rule("a loss that running brokers found", "cluster/stores/etcd_losses.py")
def test_broker_without_the_lost_changes_is_rejected_after_another_found_the_loss(
    own: LocalEtcd, tmp_path: Path
):
    with closing(followed(backend(own, "split").open_store())) as running:
        mark = restored_under(running, own, "split", tmp_path)
        assert "the last change has revision" in eventually(lambda: loss_key(own, "split"))
        for known in (mark, None):
            with pytest.raises(MetadataLost, match="reported by broker"):
                opened(own, "split", known)
    with closing(EtcdStore(own.client(), "split")) as store:
        assert store.get("b") is None


def test_changes_and_leases_of_a_broker_end_when_another_reports_a_loss(
    own: LocalEtcd, tmp_path: Path
):
    """The broker started on the restored etcd before the report."""
    (tmp_path / "2").mkdir()
    (tmp_path / "3").mkdir()
    places = [backend(own, "late") for _ in range(3)]
    with ExitStack() as stack:
        store = stack.enter_context(closing(places[0].open_store()))
        boards = [stack.enter_context(closing(each.open_board())) for each in places]
        more = [stack.enter_context(closing(EtcdStore(own.client(), "late"))) for _ in range(2)]
        boards[0].lock_id("2", tmp_path / "2")
        lease = boards[0].take_place("2", "x", 6.0)
        assert lease.write(1)
        version = store.put("a", {"n": 1}, 0)
        with closing(own.client()) as client:
            put = {"key": encoded(b"/late/lost"), "value": encoded(b"broker 1: why")}
            client.write("/v3/kv/put", put)
        for call in (
            lambda: lease.write(2),
            lambda: boards[1].take_place("3", "y", 6.0),
            lambda: boards[2].lock_id("3", tmp_path / "3"),
            lambda: more[0].put("a", {"n": 2}, version),
            lambda: more[1].put_many([Put("b", {}, 0), Put("c", {}, 0)]),
        ):
            with pytest.raises(MetadataLost, match="reported by broker 1: why"):
                call()
        assert store.lost is not None  # it has the lease's history
    with closing(EtcdStore(own.client(), "late")) as store:
        assert [each.value for each in store.list("")] == [{"n": 1}]


@pytest.mark.full  # test_restart_accepts_records_that_isolog_replaced is quicker
def test_replaced_records_are_accepted_and_the_loss_is_not_reported_again(
    own: LocalEtcd, tmp_path: Path
):
    with closing(followed(backend(own, "back").open_store())) as running:
        mark = restored_under(running, own, "back", tmp_path)
        eventually(lambda: loss_key(own, "back"))
        assert outcome(backend(own, "back").open_store) == "METADATA_LOST"
        with closing(backend(own, "back").open_store(accepts_loss=True)) as tool:
            assert tool.put("c", {}, 0)
            assert loss_key(own, "back")
            tool.replace_identity()
            assert loss_key(own, "back") == ""
        with closing(followed(backend(own, "back").open_store(mark))) as store:
            time.sleep(2.5)  # the broker that was not stopped compares each second
            assert running.lost is not None
            assert loss_key(own, "back") == ""
            assert store.put("d", {}, 0)


@pytest.mark.full  # the tests above have a loss that another broker found
def test_broker_of_a_rejected_etcd_reports_no_loss_in_the_earlier_one(
    own: LocalEtcd, tmp_path: Path
):
    """The broker has changed the restored etcd before another broker found the loss."""

    def started(mark: str) -> tuple[EtcdBackend, DurableStore] | None:
        """Start before the report, and change a record."""
        with closing(own.client()) as client:
            client.write("/v3/kv/deleterange", {"key": encoded(b"/wrong/lost")})
        place = backend(own, "wrong")
        try:
            found = followed(place.open_store(mark))
        except MetadataLost:  # the report came first
            return None
        if outcome(lambda: found.put("x", {}, 0)) == "done":
            return place, found
        found.close()
        return None

    with closing(followed(backend(own, "wrong").open_store())) as running:
        mark = restored_under(running, own, "wrong", tmp_path)
        eventually(lambda: loss_key(own, "wrong"))
        place, late = eventually(lambda: started(mark))
        with closing(late):
            eventually(lambda: outcome(lambda: late.put("y", {}, 0)) == "METADATA_LOST")
            eventually(lambda: outcome(lambda: late.changes(0)) and place.history.is_rejected)
            exchange_data(own, tmp_path / "earlier", tmp_path / "restored")
            eventually(lambda: outcome(lambda: running.get("b")) == "done")
            time.sleep(2.5)  # the other broker compares each second
            assert late.lost is not None
            assert loss_key(own, "wrong") == ""
            assert running.put("c", {}, 0)


def test_compaction_of_the_known_change_is_not_reported_as_a_loss(own: LocalEtcd):
    """It proves no loss, so other brokers may continue."""
    place = backend(own, "compacted")
    with closing(place.open_store()) as store:
        store.put("a", {}, 0)
        since = followed(store).changes(0).revision
        known = place.history.known
        store.put("b", {}, 0)
        eventually(lambda: "b" in store.changes(since, fresh=False).changed)
        with closing(own.client()) as client:
            revision = str(place.history.known.head)
            client.write("/v3/kv/compaction", {"revision": revision, "physical": True})
        place.history.start(known)
        place.history.lose("another etcd answered")
        assert outcome(lambda: store.changes(0)) == "METADATA_LOST"
        time.sleep(2.5)  # the watch compares each second
        assert store.lost is not None
        assert loss_key(own, "compacted") == ""


def test_answer_after_a_loss_does_not_change_the_known_state():
    history = EtcdHistory()
    history.note("c", 1, 5)
    history.note_head(4, "m")
    history.lose("why")
    with pytest.raises(MetadataLost):
        history.note("c", 2, 9)
    history.note_head(8, "n")
    assert history.known == KnownEtcd("c", "", (), 5, 4, "m")


@pytest.mark.quick("{")
@pytest.mark.parametrize("mark", ["", "{", '{"head": "seven"}', "[]"])
def test_damaged_file_of_the_known_state_is_reported(own: LocalEtcd, mark: str):
    with pytest.raises(UnsupportedFormat, match=r"broker\.store"):
        backend(own, "damaged").open_store(mark)
