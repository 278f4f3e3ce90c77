"""Every error that isolog raises for its users: one tree, with codes that cross the wire.

A class has a stable ``code`` (sent on the wire), ``retriable`` (whether the same call may succeed
later) and ``hint`` (the remedy, in one sentence). Mistakes of a programmer are ordinary Python
exceptions. The errors here are operating errors and bad input.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class IsologError(Exception):
    """The root. ``details`` are JSON values that name the cause (topic, column, …)."""

    code: ClassVar[str] = "ISOLOG"
    retriable: ClassVar[bool] = False
    hint: str = "Read the message; if it does not help, read the broker's log file."

    def __init__(self, message: str, *, hint: str | None = None, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details
        if hint is not None:
            self.hint = hint

    @property
    def kept(self) -> int:
        """The number of acknowledged records of the failed message."""
        return int(self.details.get("kept", 0))

    @property
    def offset(self) -> int | None:
        """The offset of the first record of the error, or None without one."""
        value = self.details.get("offset")
        return None if value is None else int(value)

    def again(self) -> IsologError:
        """Return a copy to raise: each raise of a stored error would add to its traceback."""
        return _rebuild(self.code, self.message, self.hint, self.details)

    def __str__(self) -> str:
        return f"[{self.code}] {self.message} ({self.hint})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.code, self.message, self.hint, self.details)

    def to_wire(self) -> dict[str, Any]:
        """Return the JSON object that crosses the wire. :func:`from_wire` reads it."""
        return {
            "code": self.code,
            "message": self.message,
            "hint": self.hint,
            "retriable": self.retriable,
            "details": self.details,
        }


class InvalidRequest(IsologError):
    """A request lacks a field, or a field has a value that it does not take."""

    code = "INVALID_REQUEST"
    hint = "Correct the request; the message names the field."


class UserExists(InvalidRequest):
    """A user of this name exists already."""

    code = "USER_EXISTS"
    hint = "`isolog user passwd` changes the password."


class InvalidAssignment(IsologError):
    """Replicas were assigned to a broker that does not exist, or twice to one broker."""

    code = "INVALID_ASSIGNMENT"
    hint = "Name existing brokers, each of them once; `isolog cluster status` shows them."


class InvalidOption(IsologError):
    """An option is unknown, has a value that it does not take, or contradicts another one."""

    code = "INVALID_OPTION"
    hint = "Correct what the message names."


class InvalidFilter(IsologError):
    """A filter is not a predicate that a leader can apply, or does not fit the topic's columns."""

    code = "INVALID_FILTER"
    hint = "Correct the filter; the message names the place, and what a filter takes there."


class InvalidConfig(IsologError):
    """A setting of a broker or of a topic is unknown, or its value is not allowed."""

    code = "INVALID_CONFIG"
    hint = "Correct what the message names."


class UnknownTopic(IsologError):
    """There is no topic of this name, or the caller may not describe it."""

    code = "UNKNOWN_TOPIC"
    hint = "`isolog topic list` shows the existing topics, `isolog topic create` creates one."


class UnknownBroker(IsologError):
    """The cluster has no broker with this id."""

    code = "UNKNOWN_BROKER"
    hint = "`isolog cluster status` shows the brokers of the cluster."


class UnknownPartition(IsologError):
    """The topic has no partition of this number."""

    code = "UNKNOWN_PARTITION"
    hint = "Partitions are numbered from 0; `isolog topic describe` shows how many there are."


class TopicExists(IsologError):
    """A topic of this name exists already."""

    code = "TOPIC_EXISTS"
    hint = "Choose another name, or delete the topic first."


class InvalidTopic(IsologError):
    """A topic cannot have this name, number of partitions, schema or setting, or this change."""

    code = "INVALID_TOPIC"
    hint = "A name has 1 to 200 of the characters a-z A-Z 0-9 . _ - and does not start with a dot."


class SchemaMismatch(IsologError):
    """Columns or types of a write or a read do not fit the topic."""

    code = "SCHEMA_MISMATCH"
    hint = "Give the columns the topic's types; `isolog topic describe` shows them."


class UnknownSchema(IsologError):
    """A batch has a schema that this broker has not read yet: the topic was just altered."""

    code = "UNKNOWN_SCHEMA"
    retriable = True
    hint = "The broker has not read the topic's newest schema yet: try again."


class UnsupportedType(IsologError):
    """A topic cannot store a column of this type."""

    code = "UNSUPPORTED_TYPE"
    hint = "Cast or drop the column."


class RecordTooLarge(IsologError):
    """One record is larger than the topic's ``max.record.bytes``."""

    code = "RECORD_TOO_LARGE"
    hint = "Split the value, or raise the topic's max.record.bytes."


class BatchTooLarge(IsologError):
    """A batch is larger than a message between client and broker may be."""

    code = "BATCH_TOO_LARGE"
    hint = "Append smaller batches; the message names the limit."


class InvalidRecord(IsologError):
    """A record has a value that the topic does not take, such as a null in a NOT NULL column."""

    code = "INVALID_RECORD"
    hint = "Mend or drop the record."


class RecordNotAttempted(IsologError):
    """An earlier record of the same message was refused, so this one was not appended."""

    code = "RECORD_NOT_ATTEMPTED"
    retriable = True
    hint = "An earlier record of its batch was refused, so this one was not appended: retry it."


class OffsetOutOfRange(IsologError):
    """The offset is above the end of the log."""

    code = "OFFSET_OUT_OF_RANGE"
    hint = "Start at or below the log end offset; the log may have been truncated or created again."


class OffsetEvicted(IsologError):
    """The offset is below the start of the log: retention or a trim removed its record."""

    code = "OFFSET_EVICTED"
    hint = "Retention or a trim removed the records. Start at the first that is left."


class NotVisibleYet(IsologError):
    """A planned range ends in a transaction that did not end within ``brokerTimeout``."""

    code = "NOT_VISIBLE_YET"
    retriable = True
    hint = (
        "Nothing is lost. Start the query again once the transaction has ended (`isolog"
        " transactions list`), or under the isolation that the batch was planned with."
    )


class DataLoss(IsologError):
    """Records were removed, or replaced by others, before a query or a consumer had read them."""

    code = "DATA_LOSS"
    hint = "Set failOnDataLoss to false to read the remaining records, or start a new checkpoint."


class UnknownOutcome(IsologError):
    """Records were sent, and the producer cannot determine whether they will stay in the log."""

    code = "UNKNOWN_OUTCOME"
    hint = "The records may be in the log or not: read the log, or retry and accept duplicates."


class BrokerUnavailable(IsologError):
    """No broker answers at any of the addresses."""

    code = "BROKER_UNAVAILABLE"
    retriable = True
    hint = "Check that the broker runs and that its address is right (`isolog broker status`)."


class NotLeader(IsologError):
    """The broker does not lead the partition. Clients find the leader themselves."""

    code = "NOT_LEADER"
    retriable = True
    hint = "Call the partition's leader; the message has its address, if it is known."


class LeaderEpochFenced(IsologError):
    """The request has an older leader epoch than the broker: the partition has a new leader."""

    code = "LEADER_EPOCH_FENCED"
    retriable = True
    hint = "The partition has a newer leader than this broker: look up the present leader."


class UnknownLeaderEpoch(IsologError):
    """The request has a newer leader epoch, which the broker has not read yet."""

    code = "UNKNOWN_LEADER_EPOCH"
    retriable = True
    hint = "The broker has not read this leader epoch yet: try again, or look up the leader."


class NotEnoughReplicas(IsologError):
    """An append that waits for replicas was refused: too few replicas are in sync."""

    code = "NOT_ENOUGH_REPLICAS"
    retriable = True
    hint = "Fewer replicas are in sync than min.insync.replicas requires: try again once they are."


class LeaderUnavailable(IsologError):
    """A transaction, or a change of a partition, needs a broker that cannot be reached."""

    code = "LEADER_UNAVAILABLE"
    retriable = True
    hint = "The partition's leader must run; a decision is not undone: try again."


class BrokerStopping(IsologError):
    """The broker is shutting down, and takes no new requests."""

    code = "BROKER_STOPPING"
    retriable = True
    hint = "The broker is shutting down; try again once it is back."


class RequestTimeout(IsologError):
    """The answer did not arrive within the caller's timeout."""

    code = "REQUEST_TIMEOUT"
    retriable = True
    hint = "The broker is overloaded or stopped; try again, or allow more time."


class BufferFull(IsologError):
    """A producer's unacknowledged records take ``buffer_bytes``, and no room came free in time."""

    code = "BUFFER_FULL"
    retriable = True
    hint = "The broker takes records more slowly than they come; wait, or allow more buffer_bytes."


class ProducerFenced(IsologError):
    """Another producer took over the transactional id, or a later run the sink of a query."""

    code = "PRODUCER_FENCED"
    hint = "A newer producer has taken over this identity: give every producer a unique one."


class ConsumerFenced(IsologError):
    """Another consumer took over the name."""

    code = "CONSUMER_FENCED"
    hint = "A newer consumer has taken over this name: give every consumer a unique one."


class UnknownConsumer(IsologError):
    """No consumer or query has this name."""

    code = "UNKNOWN_CONSUMER"
    hint = "`isolog consumers list` shows all consumers."


class TransactionAborted(IsologError):
    """The transaction was aborted: by its timeout, by an operator, or after an error."""

    code = "TRANSACTION_ABORTED"
    hint = "Nothing of it is visible to read_committed: begin another transaction and write again."


class UnknownTransaction(IsologError):
    """No transaction has this id."""

    code = "UNKNOWN_TRANSACTION"
    hint = "`isolog transactions list` shows all transactions."


class InvalidTransaction(IsologError):
    """The call does not fit the transaction's state, or the producer has no transactional id."""

    code = "INVALID_TRANSACTION"
    hint = "A transaction is begun, then written to, then committed or aborted, once."


class ForeignBranch(IsologError):
    """A commit named a producer id that is no branch of the transaction."""

    code = "FOREIGN_BRANCH"
    hint = "A commit names producer ids that were opened as branches of the same transaction."


class OutOfOrderSequence(IsologError):
    """A batch does not follow the last one of its producer in the partition."""

    code = "OUT_OF_ORDER_SEQUENCE"
    hint = "A batch before this one is missing, or this one is too old: make a new producer."


class SinkInUse(IsologError):
    """The sink id belongs to another streaming query, or to batch writes."""

    code = "SINK_IN_USE"
    hint = "Give every query a unique sinkId, or leave the option out."


class StaleBatch(IsologError):
    """A batch of a sink is older than the last one that the sink committed."""

    code = "STALE_BATCH"
    hint = (
        "The checkpoint is older than the sink: restore the newer one. A new checkpoint writes rows"
        " again that the topic already has."
    )


class DifferentReplay(IsologError):
    """A retry of a committed batch of a sink has other rows."""

    code = "DIFFERENT_REPLAY"
    hint = (
        "If a topic or the query was altered, or if the query's rows differ at every computation"
        " (uuid(), rand()), set differentReplay to keep: what was committed stays. If the"
        " checkpoint is older than the sink, restore the newer one. A new checkpoint writes rows"
        " again that the topic already has."
    )


class BrokerBusy(IsologError):
    """The broker has no memory, or its queue no room, for the request, which had no effect."""

    code = "BROKER_BUSY"
    retriable = True
    hint = "Try again in a moment; smaller batches find room sooner."


class LakeUnavailable(IsologError):
    """The location of a lake did not answer, so the outcome of an operation is unknown."""

    code = "LAKE_UNAVAILABLE"
    retriable = True
    hint = "Check the location and its network."


class LakeIncomplete(IsologError):
    """A table of a lake is missing, or lacks records that its worker has copied."""

    code = "LAKE_INCOMPLETE"
    hint = (
        "Mount or restore the location. To skip removed records, start at a later offset, or read"
        " with lake=never (--lake never)."
    )


class LakeExists(IsologError):
    """A lake of this name exists already."""

    code = "LAKE_EXISTS"
    hint = "Choose another name, or drop the lake first. Its tables stay."


class UnknownLake(IsologError):
    """No lake has this name."""

    code = "UNKNOWN_LAKE"
    hint = "`isolog lake list` shows all lakes."


class LakeStopped(IsologError):
    """A lake's worker writes nothing until a person has decided about a table or a topic."""

    code = "LAKE_STOPPED"
    hint = "`isolog lake status` shows the table and the reason."


class DiskFull(IsologError):
    """The disk of the leader is full."""

    code = "DISK_FULL"
    retriable = True
    hint = (
        "Make room on the broker's disk. Reads continue, and writes resume without a restart. While"
        " the partition has another in-sync replica, a producer retries within its timeout."
    )


class StorageFailure(IsologError):
    """The operating system refused to read or write a file of the log."""

    code = "STORAGE_FAILURE"
    retriable = True
    hint = "The disk refused the operation; the broker's log file has the system's error."


class TooManyOpenFiles(StorageFailure):
    """The broker needs one more open file than the operating system allows it."""

    code = "TOO_MANY_OPEN_FILES"
    hint = (
        "Raise the broker's limit of open files (`ulimit -n`, or `LimitNOFILE` of systemd) and"
        " restart it, or close connections to it."
    )


class MetadataUnavailable(StorageFailure):
    """The metadata store does not answer, or takes no changes because it is full or read-only.

    The store may have made the change, unless it refused it.
    """

    code = "METADATA_UNAVAILABLE"
    hint = "Check the store: `etcdctl endpoint status --cluster`."

    @property
    def takes_no_changes(self) -> bool:
        """Whether the store refuses all changes until it is repaired."""
        return bool(self.details.get("takes_no_changes"))


class MetadataRefused(StorageFailure):
    """The metadata store refused the request, which had no effect."""

    code = "METADATA_REFUSED"
    retriable = False
    hint = "Check the store: `etcdctl endpoint status --cluster`."


class MetadataLost(StorageFailure):
    """The metadata store's file was deleted or replaced under brokers, or etcd lost changes."""

    code = "METADATA_LOST"
    retriable = False
    hint = (
        "Write back what the brokers have open: `isolog cluster restore --bootstrap HOST:PORT`."
        " Do not stop them before that."
    )


class DamagedSegment(IsologError):
    """Records fail their checksum, and this replica is the only one that could serve them."""

    code = "DAMAGED_SEGMENT"
    hint = "The file fails its checksum: restore it from a replica or a backup, or read past it."


class DamagedEntries(IsologError):
    """Entries that a follower fetched fail their checksum."""

    code = "DAMAGED_ENTRIES"
    retriable = True
    hint = (
        "The entries were damaged on their way or at the leader; the follower fetches them again."
    )


class EntriesGone(IsologError):
    """A follower requested entries that its leader does not have."""

    code = "ENTRIES_GONE"
    hint = "The log starts later or ends earlier now; the follower compares its epochs again."


class Unauthenticated(IsologError):
    """The caller is not authenticated: the call had no credential, or it is not valid."""

    code = "UNAUTHENTICATED"
    hint = (
        "Give a valid credential. A restarted broker is refused by others until it has registered."
    )


class SessionOver(Unauthenticated):
    """The credential of the connection is no longer valid, or its session has ended."""

    code = "SESSION_OVER"
    retriable = True
    hint = "Try again: the next attempt authenticates again."


class PermissionDenied(IsologError):
    """No rule allows the caller this operation on this resource, or a rule denies it."""

    code = "PERMISSION_DENIED"
    hint = "An administrator of the cluster can allow it: isolog acl allow."


class TlsFailed(IsologError):
    """A connection with TLS could not be made: one side has no TLS, or a certificate is refused."""

    code = "TLS_FAILED"
    hint = "Check the tls options, and the broker's certificate."


class UnknownLog(IsologError):
    """There is no log at the path."""

    code = "UNKNOWN_LOG"
    hint = "Check the path; connect(path=...) without create=False makes a log there."


class WrongCluster(IsologError):
    """A broker, or a checkpoint, belongs to another log than the one that is in use."""

    code = "WRONG_CLUSTER"
    hint = "Check bootstrap or path: all brokers that they name must be of one and the same log."


class NotALogDirectory(IsologError):
    """The directory has files, but it is not the directory of a log."""

    code = "NOT_A_LOG_DIRECTORY"
    hint = "Give an empty or a new directory, or one that isolog made."


class UnsupportedFormat(IsologError):
    """A directory or a metadata store was written in a form that this release does not read."""

    code = "UNSUPPORTED_FORMAT"
    hint = "Use the isolog release that wrote it, or begin with a new directory."


class DirectoryInUse(IsologError):
    """Another broker serves the directory."""

    code = "DIRECTORY_IN_USE"
    hint = "One broker serves a directory: use that one, or stop it (`isolog broker stop`)."


class PortInUse(IsologError):
    """Another process listens at the address."""

    code = "PORT_IN_USE"
    hint = "Choose another port, or 0 for any free one."


class UnsupportedVersion(IsologError):
    """The two sides of a connection have no version of the protocol in common."""

    code = "UNSUPPORTED_VERSION"
    hint = "Upgrade the older side: a release speaks its own version and the previous one."


class Unsupported(IsologError):
    """The call requires a feature that this release of isolog does not have."""

    code = "UNSUPPORTED"
    hint = "This release of isolog does not have the feature."


class NotPicklable(IsologError):
    """A client, a producer, a consumer or a future cannot be pickled or copied."""

    code = "NOT_PICKLABLE"
    hint = (
        "Create the object in the process that uses it: inside the function of foreachPartition, or"
        " in the worker. Records, topics and errors can be pickled."
    )


class ForkedClient(IsologError):
    """A forked child used a client of its parent, whose connection it must leave alone."""

    code = "FORKED_CLIENT"
    hint = "Create a client in the child, after the fork."


class InterpreterEnding(IsologError):
    """A client was used after the end of the program, which had sent its records already."""

    code = "INTERPRETER_ENDING"
    hint = "Use clients before the program ends, or in an exit handler that is registered later."


class ReentrantCall(IsologError):
    """A signal handler or a finalizer called a client that it had interrupted inside a call."""

    code = "REENTRANT_CALL"
    hint = "Set a flag in the handler, and call the client when the interrupted call has returned."


class InternalError(IsologError):
    """The broker met an error that it did not expect."""

    code = "INTERNAL"
    hint = "This is a defect of isolog: please report it with the broker's log file."


def _tree(root: type[IsologError]) -> dict[str, type[IsologError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        found.update(_tree(child))
    return found


BY_CODE: Mapping[str, type[IsologError]] = _tree(IsologError)


def _rebuild(code: str, message: str, hint: str, details: Mapping[str, Any]) -> IsologError:
    """Make an error from its parts. An unknown code (of a newer broker) becomes the root class."""
    return BY_CODE.get(code, IsologError)(message, hint=hint, **details)


def from_wire(value: Mapping[str, Any]) -> IsologError:
    """Return the error that :meth:`IsologError.to_wire` described."""
    return _rebuild(
        str(value.get("code", "ISOLOG")),
        str(value.get("message", "")),
        str(value.get("hint", IsologError.hint)),
        dict(value.get("details", {})),
    )
