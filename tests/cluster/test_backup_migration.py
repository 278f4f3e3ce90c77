"""Moving the metadata of a stopped cluster: complete, resumable, and never in two places."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from isolog.errors import InvalidRequest, IsologError, StorageFailure, WrongCluster
from spark_stream.cluster.backup import (
    back_up,
    back_up_from,
    cancel,
    check_not_moved,
    migrate,
    put_back_into,
)
from spark_stream.cluster.brokers import CLUSTER
from spark_stream.cluster.stores.backends import (
    Backend,
    EtcdAccess,
    EtcdBackend,
    EtcdPlace,
    SqliteBackend,
)
from spark_stream.cluster.stores.store import MetadataStore, Put
from spark_stream.environment import SystemClock, SystemMachine
from tests.etcd import needs_etcd

LEASE_S = 0.6
_names = itertools.count()
Make = Callable[[], Backend]


@pytest.fixture
def files(tmp_path: Path) -> Make:
    return lambda: SqliteBackend(tmp_path / f"{next(_names)}.sqlite")


@pytest.fixture(params=["file", pytest.param("etcd", marks=needs_etcd)])
def make(request: pytest.FixtureRequest, files: Make) -> Make:
    """Makes a place for a cluster's metadata."""
    if request.param == "file":
        return files
    found = request.getfixturevalue("etcd")

    def in_etcd() -> Backend:
        place = EtcdPlace(tuple(found.endpoints), f"moved-{next(_names)}")
        return EtcdBackend(place, EtcdAccess(), SystemClock(), SystemMachine(), LEASE_S)

    return in_etcd


def filled(backend: Backend, cluster: str = "c1", records: int = 250) -> dict[str, Any]:
    """Fill a place with a cluster's records. Return them."""
    made = {f"record/{n}": {"n": n, "text": "ä" * (n % 7)} for n in range(records)}
    made[CLUSTER] = {"id": cluster, "secret": "00"}
    with closing(backend.open_store()) as store:
        store.put_many([Put(key, value, 0) for key, value in made.items()])
    return made


def content(backend: Backend) -> dict[str, Any]:
    with closing(backend.open_store()) as store:
        return {each.key: each.value for each in store.list("") if each.key != "moved"}


def serves(backend: Backend) -> bool:
    """Whether a broker would start on it as a part of its cluster."""
    with closing(backend.open_store()) as store:
        try:
            check_not_moved(store)
        except WrongCluster:
            return False
        return store.get(CLUSTER) is not None


@pytest.mark.rule("the place of a cluster's metadata during a move", "cluster/backup.py")
def test_a_cluster_moves_and_moves_back(make: Make, files: Make):
    here, there = files(), make()
    records = filled(here)
    assert migrate(here, there) == len(records)
    assert content(there) == records
    assert (serves(here), serves(there)) == (False, True)
    assert migrate(here, there) == len(records), "the same again changes nothing"
    with closing(there.open_store()) as store:
        store.put("new", {"n": 1}, 0)
        gone = store.get("record/3")
        assert store.delete("record/3", gone.version)
    migrate(there, here)
    del records["record/3"]
    assert content(here) == records | {"new": {"n": 1}}
    assert (serves(here), serves(there)) == (True, False)


class Failing:
    """A place whose store fails after a number of changes."""

    def __init__(self, backend: Backend, changes: list[int]) -> None:
        self._backend = backend
        self._left = changes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def __str__(self) -> str:
        return str(self._backend)

    def open_store(self, **given: Any) -> MetadataStore:
        store = self._backend.open_store(**given)
        for name in ("put", "put_many", "delete", "delete_many"):
            setattr(store, name, self._counted(getattr(store, name)))
        return store

    def _counted(self, act: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any) -> Any:
            self._left[0] -= 1
            if self._left[0] < 0:
                raise StorageFailure("the command was interrupted")
            return act(*given)

        return counted


def test_a_move_that_stops_anywhere_is_finished_by_the_next_run(make: Make, files: Make):
    for stops_after in itertools.count():
        here, there, left = files(), make(), [stops_after]
        records = filled(here, records=20)
        try:
            migrate(Failing(here, left), Failing(there, left))
        except StorageFailure:
            assert not (serves(here) and serves(there))
            assert not serves(there) or content(there) == records
            assert migrate(here, there) == len(records)
        else:
            break
        assert (serves(here), serves(there)) == (False, True)
        assert content(there) == records
    assert stops_after > 4


def test_an_unfinished_move_can_be_cancelled_or_redirected(make: Make, files: Make):
    here, there, left = files(), make(), [2]
    records = filled(here)
    with pytest.raises(StorageFailure):
        migrate(Failing(here, left), Failing(there, left))
    assert not serves(here)
    cancel(here)
    assert serves(here)
    assert not serves(there)
    with pytest.raises(InvalidRequest, match=r"no move from .* is unfinished"):
        cancel(here)
    elsewhere = files()
    assert migrate(here, elsewhere) == len(records)
    with pytest.raises(InvalidRequest, match=r"was moved from .* to .* already"):
        migrate(here, there)
    with pytest.raises(InvalidRequest, match=r"no move from .* is unfinished"):
        cancel(here)


def test_a_move_fails_if_it_is_cancelled_or_run_twice_at_the_same_time(make: Make, files: Make):
    here, there, elsewhere = files(), make(), files()
    filled(here)
    for meanwhile in (lambda: cancel(here), lambda: migrate(here, elsewhere)):
        place = Meddling(there, meanwhile)
        with pytest.raises(InvalidRequest, match="another command has moved this metadata"):
            migrate(here, place)
        assert not serves(there)
    assert (serves(here), serves(elsewhere)) == (False, True)


def test_a_finished_move_is_not_repeated(make: Make, files: Make):
    first, second, third = files(), make(), files()
    records = filled(first)
    migrate(first, second)
    migrate(second, third)
    with pytest.raises(InvalidRequest, match="belongs to another migration"):
        migrate(first, second)
    assert [serves(each) for each in (first, second, third)] == [False, False, True]
    assert content(third) == records


def test_a_broker_refuses_an_incomplete_copy_and_does_not_change_it(
    make: Make, files: Make, tmp_path: Path
):
    here, there, left = files(), make(), [3]
    records = filled(here)
    with pytest.raises(StorageFailure):
        migrate(Failing(here, left), Failing(there, left))
    with closing(there.open_board()) as board:  # one that is started on it again and again
        lock = board.lock_id("b1", tmp_path)
        with pytest.raises(InvalidRequest, match="brokers run on"):
            migrate(here, there)
        lock.release()
    assert not serves(there)
    assert migrate(here, there) == len(records)


class Meddling:
    """A place where something else happens while it is opened to look for brokers."""

    def __init__(self, backend: Backend, meanwhile: Callable[[], Any]) -> None:
        self._backend = backend
        self._meanwhile = [meanwhile]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def __str__(self) -> str:
        return str(self._backend)

    def open_board(self) -> Any:
        while self._meanwhile:
            self._meanwhile.pop()()
        return self._backend.open_board()


def test_no_metadata_moves_while_a_broker_runs(make: Make, files: Make, tmp_path: Path):
    here, there = make(), files()
    filled(here)
    with closing(here.open_board()) as board:
        lock = board.lock_id("b1", tmp_path)
        with pytest.raises(InvalidRequest, match=r"brokers run on .*: b1"):
            migrate(here, there)
        assert serves(here)
        assert not serves(there)
        lock.release()
    migrate(here, there)
    assert serves(there)


def test_a_store_in_use_or_of_another_cluster_is_not_replaced(make: Make, files: Make):
    here, there = files(), make()
    filled(here)
    with pytest.raises(InvalidRequest, match=r"no metadata store|no cluster.s metadata"):
        migrate(there, here)
    filled(there, records=1)
    with pytest.raises(InvalidRequest, match="is in use"):
        migrate(here, there)
    other = make()
    filled(other, "c2", 1)
    with pytest.raises(WrongCluster, match="the store of cluster c2, and this is cluster c1"):
        migrate(here, other)
    assert serves(here)


def test_a_backup_of_etcd_is_restored_into_it(make: Make, files: Make, tmp_path: Path):
    here, saved = make(), tmp_path / "saved"
    records = filled(here)
    if isinstance(here, SqliteBackend):
        back_up(here.file, saved)
    else:
        back_up_from(here, saved)
        assert saved.stat().st_mode & 0o777 == 0o600
        with pytest.raises(InvalidRequest, match="exists"):
            back_up_from(here, saved)
    fresh = make()
    put_back_into(saved, fresh)
    assert content(fresh) == records
    assert serves(fresh)
    with pytest.raises(InvalidRequest, match="is in use"):
        put_back_into(saved, fresh)
    put_back_into(saved, fresh, force=True)
    other = make()
    filled(other, "c2", 1)
    with pytest.raises(IsologError, match="the store of cluster c2"):
        put_back_into(saved, other, force=True)
