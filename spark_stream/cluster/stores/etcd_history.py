"""Detection of an etcd that lost changes: it was restored, or is another cluster.

**Evidence.** Reads and transactions of etcd are linearizable. So an answer never has a lower
revision than an answer that came before its request. A lower revision, another cluster id, another
identity of the records, or another change at the revision of the last known change is a loss. A
member that lags answers watches and calls of its status only, and they are no evidence.

**Consequence.** After a loss all calls fail with METADATA_LOST. Revisions of the restored etcd may
pass the earlier ones later, so the loss lasts until etcd has the last known change again.

**The loss key.** A running broker that finds a loss puts ``/NAME/lost`` into that etcd. All
changes, leases and locks of ids require that the key is absent, and its presence is a loss. So a
broker that has read no later state, such as one that was stopped, changes no record in the
restored etcd. ``isolog cluster restore`` deletes the key. A starting broker never writes it, and
neither does a broker that has followed an etcd with the key: the earlier etcd may be put back.

**Restarts.** A broker stores the known state in its directory, and compares it when it starts.
``isolog cluster restore`` and ``migrate-metadata`` give the records a new identity. Only a store
with an identity that the broker has never seen may differ from the known state.
"""

from __future__ import annotations

import threading
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from spark_stream.errors import MetadataLost
from spark_stream.loggers import logger_of
from spark_stream.structs import learn_types

logger = logger_of(__name__)

_HINT: Final = (
    "If the earlier etcd exists, connect the brokers to it. Else stop all brokers, and run"
    " `isolog cluster backup FILE --metadata URL`, then"
    " `isolog cluster restore FILE --metadata URL --force`."
)


class KnownEtcd(Struct, frozen=True):
    """The newest state of a store that a broker has read.

    ``cluster``: etcd's cluster id. ``identity``: the id of the store's records, and ``earlier`` its
    former ids. ``head`` and ``mark``: the revision and the value of the head, which each change
    moves.
    """

    cluster: str = ""
    identity: str = ""
    earlier: tuple[str, ...] = ()
    revision: int = 0
    head: int = 0
    mark: str = ""


class FoundEtcd(Struct, frozen=True):
    """The present state of a store. ``mark`` is that of the known head, or None if compacted.

    ``loss``: the value of the loss key, or "".
    """

    cluster: str
    term: int
    identity: str
    revision: int
    head: int
    mark: str | None
    loss: str = ""


def difference(known: KnownEtcd, found: FoundEtcd) -> str | None:
    """Return the first sign that the found state does not follow the known one, or None."""
    if known.cluster and found.cluster != known.cluster:
        return f"its cluster id is {found.cluster}, and was {known.cluster}"
    if found.revision < known.revision:
        return fallen(found.revision, known.revision)
    if known.identity and found.identity != known.identity:
        return "the records have another identity"
    if found.head < known.head:
        return f"the last change has revision {found.head}, and an earlier one had {known.head}"
    if known.head and found.mark is not None and found.mark != known.mark:
        return f"the change of revision {known.head} is another one"
    return None


def fallen(revision: int, before: int) -> str:
    """Return the text for a revision that is below an earlier one."""
    return f"its revision is {revision}, and was {before}"


def is_replaced(known: KnownEtcd, found: FoundEtcd) -> bool:
    """Return whether ``isolog`` has replaced the records since the known state."""
    is_other = bool(found.identity) and found.identity not in (known.identity, *known.earlier)
    return is_other and not found.loss


def reported(loss: str) -> str:
    """Return the text for a loss that the loss key shows."""
    return f"this was reported by {loss}"


class EtcdHistory:
    """The state of etcd that one broker's store and board have read. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.known = KnownEtcd()
        """The newest state that was read. ``revision`` is the greatest one of an answer."""
        self.term = 0
        self.is_suspect = False
        """Whether a member has answered for another cluster or an earlier term."""
        self.lost: MetadataLost | None = None
        self.broker = ""
        """The id of the broker, for the reports of others."""
        self.is_rejected = False
        """Whether an etcd with the loss key has the known state."""
        self._lost_in: set[str] = set()

    def start(self, known: KnownEtcd) -> None:
        """Start from a state that was read before."""
        with self._lock:
            self.known = known

    def check(self) -> int:
        """Return the greatest revision that an answer had before this call.

        Raises:
            MetadataLost: Etcd has lost changes.
        """
        if self.lost is not None:
            raise self.lost.again()
        return self.known.revision

    def note(self, cluster: str, term: int, revision: int) -> None:
        """Record the header of an answer.

        Raises:
            MetadataLost: A loss was found since the request.
        """
        with self._lock:
            if self.lost is not None:
                raise self.lost.again()
            self.term = max(self.term, term)
            if revision > self.known.revision or not self.known.cluster:
                self.known = replace(
                    self.known,
                    cluster=self.known.cluster or cluster,
                    revision=max(self.known.revision, revision),
                )

    def note_head(self, revision: int, mark: str) -> None:
        """Record a change of the records."""
        with self._lock:
            if revision > self.known.head and self.lost is None:
                self.known = replace(self.known, head=revision, mark=mark)

    def lost_in(self, cluster: str) -> bool:
        """Return whether a loss was found in the etcd with this cluster id."""
        return cluster in self._lost_in

    def lose(self, reason: str, cluster: str | None = None) -> MetadataLost:
        """Record a loss, in the known cluster by default. Return the error to raise."""
        with self._lock:
            self._lost_in.add(self.known.cluster if cluster is None else cluster)
            if self.lost is None:
                self.lost = MetadataLost(
                    f"etcd was restored from an earlier state, or is another cluster: {reason}",
                    hint=_HINT,
                )
                logger.error("the metadata in etcd is lost: %s", self.lost)
            lost = self.lost
        again = lost.again()
        assert isinstance(again, MetadataLost)
        return again

    def regain(self, found: FoundEtcd) -> None:
        """Record that etcd has the known state."""
        with self._lock:
            if self.lost is not None:
                logger.warning(
                    "etcd again has all changes that this broker had read: its metadata is not lost"
                )
            self.lost, self.is_suspect, self.is_rejected = None, False, False
            self._lost_in.clear()
            self.known, self.term = replace(self.known, cluster=found.cluster), found.term


learn_types(KnownEtcd)
