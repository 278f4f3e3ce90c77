"""Comparison of an etcd with the state that one broker has read (see ``etcd_history``)."""

from __future__ import annotations

import secrets
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from spark_stream.cluster.stores.etcd_client import (
    RANGE,
    TXN,
    EtcdClient,
    Json,
    decoded_value,
    encoded,
    is_at,
)
from spark_stream.cluster.stores.etcd_history import (
    FoundEtcd,
    KnownEtcd,
    difference,
    is_replaced,
    reported,
)
from spark_stream.errors import (
    MetadataRefused,
    MetadataUnavailable,
    StorageFailure,
    UnsupportedFormat,
)
from spark_stream.loggers import logger_of

logger = logger_of(__name__)


class LossKey:
    """The key ``/NAME/lost``, which shows that a running broker has found a loss in this etcd."""

    def __init__(self, client: EtcdClient, name: str) -> None:
        self._client = client
        self.key = encoded(f"/{name}/lost".encode())
        self.absent = is_at(self.key, 0)
        self.read: Json = {"request_range": {"key": self.key}}

    def check(self, response: Json) -> None:
        """Check the response to :attr:`read` in an answer of a transaction.

        Raises:
            MetadataLost: The key exists.
        """
        found = response["response_range"].get("kvs", [])
        if found:
            raise self._client.history.lose(reported(decoded_value(found[0])))


class EtcdLosses:
    """The checks of one store that its etcd has all changes that were read from it."""

    def __init__(self, client: EtcdClient, name: str, head: bytes, *, accepts_loss: bool) -> None:
        """``head``: the key of the head. ``accepts_loss``: whether to ignore the loss key."""
        self._client = client
        self._history = client.history
        self._head = encoded(head)
        self._identity = encoded(f"/{name}/identity".encode())
        self._loss = LossKey(client, name)
        self._accepts_loss = accepts_loss

    @property
    def key(self) -> LossKey | None:
        """The loss key, or None if it is ignored."""
        return None if self._accepts_loss else self._loss

    def start(self, mark: str | None) -> None:
        """Compare the state with ``mark``, the known state before a restart.

        Raises:
            MetadataLost: Etcd has lost changes since.
            MetadataUnavailable: No member answers.
            UnsupportedFormat: Another release has written the mark.
        """
        known = _known(mark)
        found, reason = self._present(known)
        if not found.identity and not known.identity:
            asked = {"compare": [is_at(self._identity, 0)], "success": [self._new_identity()]}
            self._client.write_again(TXN, asked)
            found, reason = self._present(known)
        if is_replaced(known, found):
            earlier = (*known.earlier, *filter(None, [known.identity]))
            known, reason = KnownEtcd(found.cluster, found.identity, earlier), None
        self._history.start(known)
        self._judge(found, reason)

    def check(self) -> None:
        """Check that a member has all that was read from etcd. If not, report the loss.

        Raises:
            MetadataLost: All members that answer lack a part.
            MetadataUnavailable: No member answers.
        """
        known = self._history.known
        found, reason = self._present(known)
        try:
            self._judge(found, reason)
        finally:
            if reason is not None:
                self._report(known, found)

    def replace_identity(self) -> None:
        """Give the records another identity after their replacement. Delete the loss key."""
        steps = [self._new_identity(), {"request_delete_range": {"key": self._loss.key}}]
        self._client.write_again(TXN, {"success": steps})

    def _new_identity(self) -> Json:
        value = encoded(secrets.token_hex(8).encode())
        return {"request_put": {"key": self._identity, "value": value}}

    def _judge(self, found: FoundEtcd, reason: str | None) -> None:
        if reason is not None:
            raise self._history.lose(reason, found.cluster)
        self._history.regain(found)

    def _report(self, known: KnownEtcd, found: FoundEtcd) -> None:
        """Put the loss key into the etcd with the found state, if this is certain and new."""
        # A revision alone is not enough: an answer of a restored etcd may have raised it.
        change = difference(replace(known, revision=0), found)
        if found.loss and change is None:
            self._history.is_rejected = True
        if change is None or found.loss or self._history.is_rejected or is_replaced(known, found):
            return
        who = f"broker {self._history.broker}: {change}"
        identity = is_at(self._identity, 0)
        if found.identity:
            value = encoded(found.identity.encode())
            identity = {"key": self._identity, "target": "VALUE", "value": value}
        asked = {
            "compare": [self._loss.absent, identity, is_at(self._head, found.head)],
            "success": [{"request_put": {"key": self._loss.key, "value": encoded(who.encode())}}],
        }
        for _ in range(self._client.members):
            with suppress(StorageFailure):  # the next check tries it again
                endpoint, answer = self._client.probe(TXN, asked)
                if answer.get("succeeded"):
                    logger.error(
                        "etcd at %s has lost metadata. A key in it tells the other brokers: %s",
                        endpoint,
                        change,
                    )
                    return
                self._client.turn_from(endpoint)

    def _present(self, known: KnownEtcd) -> tuple[FoundEtcd, str | None]:
        """Read the present state from the first member that follows the known one.

        If no member does, return a replaced state or any other, and the reason against it.

        Raises:
            MetadataUnavailable: No member answers.
        """
        failure = MetadataUnavailable("no member of etcd answers")
        others: list[tuple[FoundEtcd, str]] = []
        for _ in range(self._client.members):
            try:
                found = self._found(known)
            except MetadataUnavailable as error:
                failure = error
                continue
            reason = difference(known, found)
            if reason is None and self._history.lost_in(found.cluster) and found.mark is None:
                reason = f"the change of revision {known.head} was compacted"
            if reason is None and found.loss:
                reason = reported(found.loss)
            if reason is None:
                return found, None
            others.append((found, reason))
        if not others:
            raise failure
        return next((each for each in others if is_replaced(known, each[0])), others[0])

    def _found(self, known: KnownEtcd) -> FoundEtcd:
        """Read the present state from one member."""
        keys = (self._head, self._identity, self._loss.key)
        reads = [{"request_range": {"key": key}} for key in keys]
        endpoint, answer = self._client.probe(TXN, {"success": reads})
        header = answer["header"]
        head, identity, loss = (
            (each["response_range"].get("kvs") or [{}])[0] for each in answer["responses"]
        )
        at = int(head.get("mod_revision", 0))
        mark: str | None = decoded_value(head)
        if at > known.head > 0:
            asked = {"key": self._head, "revision": str(known.head)}
            try:
                _, answer = self._client.probe(RANGE, asked)
            except MetadataRefused:  # compacted
                mark = None
            else:
                mark = decoded_value((answer.get("kvs") or [{}])[0])
        found = FoundEtcd(
            header["cluster_id"],
            int(header["raft_term"]),
            decoded_value(identity),
            int(header["revision"]),
            at,
            mark,
            "" if self._accepts_loss else decoded_value(loss),
        )
        if difference(known, found) is not None or found.loss:
            self._client.turn_from(endpoint)
        return found


def _known(mark: str | None) -> KnownEtcd:
    if mark is None:
        return KnownEtcd()
    try:
        return msgspec.json.decode(mark, type=KnownEtcd)
    except (msgspec.MsgspecError, UnicodeError):
        raise UnsupportedFormat(
            "the file broker.store in the broker's directory is damaged, or another release has"
            " written it",
            hint="Delete the file: the broker then accepts the present records of etcd.",
        ) from None
