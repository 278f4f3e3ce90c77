"""Moves the metadata of a stopped cluster to another store.

A move may stop anywhere, and is then run again.

**Order.** The source gets a mark, so that no broker starts on it any more; the target gets one,
because it is not complete. Records are copied and compared. The source's mark says that the move is
done, and only then the target's mark goes: at no moment can brokers start on both.

A broker looks for a mark after it has locked its id, and a move looks for locked ids after it has
written the mark. So one of them sees the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, Final

import msgspec
from msgspec import Struct

from spark_stream.cluster.identity import CLUSTER
from spark_stream.cluster.stores.backends import Backend
from spark_stream.cluster.stores.store import Delete, MetadataStore, Put
from spark_stream.errors import InvalidRequest, StorageFailure, WrongCluster

_MARK: Final = "moved"


class MoveMark(Struct, frozen=True):
    """A move, as both stores have it. ``done``: the source is left for good."""

    source: str
    target: str
    done: bool = False


def check_not_moved(store: MetadataStore) -> None:
    """Check that brokers may use the store; to be called once the broker's id is locked.

    Raises:
        WrongCluster: its records were moved away, or are not complete yet.
    """
    mark = _mark_of(store)
    if mark is None:
        return
    if mark.done:
        raise WrongCluster(
            f"the metadata of this cluster was moved from {mark.source} to {mark.target}",
            hint=f"Start the brokers with --metadata {mark.target}.",
        )
    raise WrongCluster(
        f"the metadata of this cluster is being moved from {mark.source} to {mark.target}",
        hint="Run `isolog cluster migrate-metadata`, or `restore`, again, to its end. Or give an"
        f" unfinished move up: `isolog cluster migrate-metadata --cancel {mark.source}`.",
    )


def migrate(source: Backend, target: Backend) -> int:
    """Move a cluster's metadata; return how many records it has.

    Raises:
        InvalidRequest: there is no cluster in the source, or it was moved to another place; or
            brokers run on one of them, or the target is in use.
        WrongCluster: the target is the store of another cluster.
        StorageFailure: a store failed, or the copy differs; the move can be run again.
    """
    if not source.exists():
        raise InvalidRequest(f"there is no metadata store {source}")
    with closing(source.open_store()) as old, closing(target.open_store()) as new:
        cluster = old.get(CLUSTER)
        if cluster is None:
            raise InvalidRequest(f"{source} has no cluster's metadata: nothing to move")
        move = MoveMark(str(source), str(target))
        left = _mark_of(old)
        is_left = left is not None and left.done
        if left is not None and is_left and left.target != move.target:
            raise InvalidRequest(
                f"the metadata was moved from {source} to {left.target} already",
                hint="Move it from there.",
            )
        if is_left and _mark_of(new) is None:
            return _count(new)
        check_free(new, str(target), str(cluster.value["id"]))
        if not is_left:
            _write_mark(old, move)
            _check_stopped(source, old)
        _write_mark(new, move)
        _check_stopped(target, new)
        copy_records(old, new)
        _write_mark(old, MoveMark(move.source, move.target, done=True))
        _remove_mark(new)
        return _count(new)


def cancel(source: Backend) -> None:
    """Give an unfinished move up: brokers may start on its source again.

    Raises:
        InvalidRequest: no move is unfinished.
    """
    with closing(source.open_store()) as store:
        mark = _mark_of(store)
        if mark is None or mark.done or mark.source != str(source):
            raise InvalidRequest(
                f"no move from {source} is unfinished",
                hint=f"The metadata is in {mark.target}." if mark else None,
            )
        _remove_mark(store)


@contextmanager
def replacing(
    target: Backend, source: str, cluster_id: str, *, force: bool
) -> Iterator[MetadataStore]:
    """Yield the open target, on which no broker can start before the block ends.

    ``force``: it may have records of the same cluster.

    Raises: as :func:`migrate`.
    """
    with closing(target.open_store()) as store:
        if force:
            _check_cluster(store, str(target), cluster_id)
        else:
            check_free(store, str(target), cluster_id)
        _write_mark(store, MoveMark(source, str(target)))
        _check_stopped(target, store)
        yield store
        _remove_mark(store)


def check_free(store: MetadataStore, name: str, cluster_id: str) -> None:
    """Check that a store's records may be replaced: it has none, or they were moved away.

    Raises: as :func:`migrate`.
    """
    _check_cluster(store, name, cluster_id)
    if _mark_of(store) is None and store.list(""):
        raise InvalidRequest(
            f"{name} is in use: it has the metadata of this cluster",
            hint="Name an empty place.",
        )


def copy_records(source: MetadataStore, target: MetadataStore) -> None:
    """Make the target's records those of the source, and compare them.

    Raises:
        StorageFailure: a store failed, or the records differ, as somebody else has changed them.
    """
    wanted = _records(source)
    have = {each.key: each for each in target.list("") if each.key != _MARK}
    target.delete_many([Delete(key, have[key].version) for key in have.keys() - wanted.keys()])
    target.put_many(
        [
            Put(key, value, have[key].version if key in have else 0)
            for key, value in wanted.items()
            if key not in have or have[key].value != value
        ]
    )
    copied = _records(target)
    if copied != wanted:
        wrong = sorted(
            key for key in wanted.keys() | copied.keys() if wanted.get(key) != copied.get(key)
        )
        raise StorageFailure(
            f"{len(wrong)} records were not copied, such as {wrong[0]!r}", hint="Run it again."
        )


def _records(store: MetadataStore) -> dict[str, Any]:
    return {each.key: each.value for each in store.list("") if each.key != _MARK}


def _count(store: MetadataStore) -> int:
    return len(_records(store))


def _check_cluster(store: MetadataStore, name: str, cluster_id: str) -> None:
    found = store.get(CLUSTER)
    if found is not None and found.value["id"] != cluster_id:
        raise WrongCluster(
            f"{name} is the store of cluster {found.value['id']}, and this is cluster {cluster_id}",
            hint="Name an empty place.",
        )


def _check_stopped(backend: Backend, store: MetadataStore) -> None:
    """Check that no broker runs on a store; if one does, remove the mark.

    Raises:
        InvalidRequest: one does.
    """
    with closing(backend.open_board()) as board:
        running = board.running()
    if running:
        _remove_mark(store)
        raise InvalidRequest(
            f"brokers run on {backend}: {', '.join(running)}", hint="Stop all of them first."
        )


def _mark_of(store: MetadataStore) -> MoveMark | None:
    record = store.get(_MARK)
    return None if record is None else msgspec.convert(record.value, MoveMark)


def _write_mark(store: MetadataStore, mark: MoveMark) -> None:
    record = store.get(_MARK)
    value = msgspec.to_builtins(mark)
    if store.put(_MARK, value, 0 if record is None else record.version) is None:
        raise InvalidRequest("another move of this metadata runs", hint="Wait for its end.")


def _remove_mark(store: MetadataStore) -> None:
    record = store.get(_MARK)
    if record is not None:
        store.delete(_MARK, record.version)
