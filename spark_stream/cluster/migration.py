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
    mark = _OwnMark(store).before
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
    with (
        closing(source.open_store()) as old,
        closing(target.open_store(accepts_loss=True)) as new,
    ):
        cluster = old.get(CLUSTER)
        if cluster is None:
            raise InvalidRequest(f"{source} has no cluster's metadata: nothing to move")
        move = MoveMark(str(source), str(target))
        mine, theirs = _OwnMark(old), _OwnMark(new)
        before = mine.before
        is_done = before is not None and before.done
        if before is not None and is_done and before.target != move.target:
            raise InvalidRequest(
                f"the metadata was moved from {source} to {before.target} already",
                hint="Move it from there.",
            )
        if is_done and theirs.before is None:
            return len(_records(new))
        _check_cluster(new, move.target, str(cluster.value["id"]))
        _check_replaceable(new, theirs.before, move)
        if not is_done:
            mine.write(move)
            _check_stopped(source, mine)
        theirs.write(move)
        _check_stopped(target, theirs)
        copy_records(old, new)
        if not is_done:
            mine.write(MoveMark(move.source, move.target, done=True))
        new.replace_identity()
        theirs.remove()
        return len(_records(new))


def cancel(source: Backend) -> None:
    """Give an unfinished move up: brokers may start on its source again.

    Raises:
        InvalidRequest: no move is unfinished.
    """
    if not source.exists():
        raise InvalidRequest(f"there is no metadata store {source}")
    with closing(source.open_store()) as store:
        mine = _OwnMark(store)
        mark = mine.before
        if mark is None or mark.done or mark.source != str(source):
            raise InvalidRequest(
                f"no move from {source} is unfinished",
                hint=f"Its mark says: from {mark.source} to {mark.target}." if mark else None,
            )
        mine.remove()


@contextmanager
def replacing(
    target: Backend, source: str, cluster_id: str, *, force: bool
) -> Iterator[MetadataStore]:
    """Yield the open target, on which no broker can start before the block ends.

    ``force``: it may have records of the same cluster.

    Raises: as :func:`migrate`.
    """
    with closing(target.open_store(accepts_loss=True)) as store:
        move, theirs = MoveMark(source, str(target)), _OwnMark(store)
        _check_cluster(store, move.target, cluster_id)
        if not force:
            _check_replaceable(store, theirs.before, move)
        theirs.write(move)
        _check_stopped(target, theirs)
        yield store
        store.replace_identity()
        theirs.remove()


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


def _check_cluster(store: MetadataStore, name: str, cluster_id: str) -> None:
    found = store.get(CLUSTER)
    if found is not None and found.value["id"] != cluster_id:
        raise WrongCluster(
            f"{name} is the store of cluster {found.value['id']}, and this is cluster {cluster_id}",
            hint="Name an empty place.",
        )


def _check_replaceable(store: MetadataStore, mark: MoveMark | None, move: MoveMark) -> None:
    """Check that a store's records may be replaced.

    They may if there are none, if they are what an interrupted run of this move has left, or if
    they were moved away to where they come from now.

    Raises:
        InvalidRequest: they may not.
    """
    if mark is None:
        if store.list(""):
            raise InvalidRequest(
                f"{move.target} is in use: it has the metadata of this cluster",
                hint="Name an empty place.",
            )
    elif mark != move and not (mark.done and mark.target == move.source):
        raise InvalidRequest(
            f"{move.target} belongs to another move, from {mark.source} to {mark.target}",
            hint="Finish that one, or name an empty place.",
        )


def _check_stopped(backend: Backend, mark: _OwnMark) -> None:
    """Check that no broker runs on a store; if one does, withdraw the mark.

    Raises:
        InvalidRequest: one does.
    """
    with closing(backend.open_board()) as board:
        running = board.running()
    if running:
        mark.withdraw()
        raise InvalidRequest(
            f"brokers run on {backend}: {', '.join(running)}", hint="Stop all of them first."
        )


class _OwnMark:
    """The mark of a store, as one run of a move changes it. It notices what others change."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        record = store.get(_MARK)
        self.before = None if record is None else msgspec.convert(record.value, MoveMark)
        """What there was before this run."""
        self._version = 0 if record is None else record.version

    def write(self, mark: MoveMark) -> None:
        version = self._store.put(_MARK, msgspec.to_builtins(mark), self._version)
        if version is None:
            raise _interfered()
        self._version = version

    def remove(self) -> None:
        if not self._store.delete(_MARK, self._version):
            raise _interfered()

    def withdraw(self) -> None:
        """Leave what there was before."""
        if self.before is None:
            self.remove()
        else:
            self.write(self.before)


def _interfered() -> InvalidRequest:
    return InvalidRequest(
        "another command has moved this metadata meanwhile, or has given the move up",
        hint="Look which store the brokers are to use, and run the move again.",
    )
