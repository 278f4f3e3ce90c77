"""An etcd that was restored from an earlier copy, or is another cluster, is METADATA_LOST."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from spark_stream.cluster.stores.backends import EtcdAccess, EtcdBackend, EtcdPlace
from spark_stream.cluster.stores.etcd import EtcdStore
from spark_stream.cluster.stores.etcd_client import EtcdClient
from spark_stream.cluster.stores.etcd_history import (
    FoundEtcd,
    KnownEtcd,
    difference,
    is_replaced,
)
from spark_stream.environment import SystemClock, SystemMachine
from spark_stream.errors import IsologError, MetadataLost
from spark_stream.testing import LocalEtcd
from tests.etcd import copy_data, needs_etcd, put_back_data
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
    """Wait while etcd starts; then the call must fail with METADATA_LOST."""
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


@pytest.mark.rule("whether a metadata store has lost changes", "cluster/stores/etcd_history.py")
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
def test_signs_of_lost_changes(changed: dict[str, object], sign: str | None):
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


def test_restart_finds_a_restore_of_etcd(own: LocalEtcd, tmp_path: Path):
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


def test_store_works_again_once_the_earlier_etcd_is_back(own: LocalEtcd, tmp_path: Path):
    with closing(EtcdStore(own.client(), "regained")) as store:
        copy_data(own, tmp_path / "older")
        version = store.put("a", {}, 0)
        since = store.changes(0).revision
        copy_data(own, tmp_path / "newer")
        put_back_data(own, tmp_path / "older")
        lost(lambda: store.put("b", {}, 0))
        put_back_data(own, tmp_path / "newer")
        eventually(lambda: outcome(lambda: store.get("a")) == "done")
        assert store.lost is None
        assert store.get("a").version == version
        assert store.put("b", {}, 0) is not None
        assert set(store.changes(since).changed) == {"b"}


def test_store_that_knows_a_later_head_changes_nothing_whatever_the_revision(
    own: LocalEtcd, tmp_path: Path
):
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


def test_changes_of_a_restored_etcd_are_never_returned(own: LocalEtcd, tmp_path: Path):
    with closing(EtcdStore(own.client(), "feed")) as store:
        store.put("a", {"n": 1}, 0)
        since = store.changes(0).revision
        copy_data(own, tmp_path / "copy")
        store.put("b", {}, 0)
        eventually(lambda: "b" in store.changes(since, fresh=False).changed)
        put_back_data(own, tmp_path / "copy")
        with closing(EtcdStore(own.client(), "feed")) as ignorant:
            for number in range(20):
                eventually(lambda n=number: outcome(lambda: ignorant.put(f"{n}", {}, 0)) == "done")
        eventually(lambda: store.lost is not None)
        with pytest.raises(MetadataLost):
            store.changes(since, fresh=False)


def test_one_member_of_another_cluster_is_passed_over(
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
            for _ in range(5):  # each comparison starts with the member of the other cluster
                client.turn_from(own.endpoints[0])
                store.compare(store.mark)
            assert "METADATA_LOST" not in caplog.text
            own.members[0].kill()
            eventually(lambda: store.lost is not None)
            own.restore()
            eventually(lambda: outcome(lambda: store.changes(since)) == "done")
            assert set(store.changes(since).changed) >= {"b"}


def test_restart_passes_over_a_first_member_of_another_cluster(own: LocalEtcd, tmp_path: Path):
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


def test_compaction_does_not_hide_the_known_etcd_after_another_cluster(
    own: LocalEtcd, tmp_path: Path
):
    """Another broker changed records, so the known change is an earlier one."""
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
