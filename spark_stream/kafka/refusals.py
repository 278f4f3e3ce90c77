"""Kafka's error codes, and the exceptions for data that a Kafka client may not send.

Source: https://kafka.apache.org/protocol#protocol_error_codes.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, ClassVar, Final

from spark_stream.errors import (
    BatchTooLarge as TooLargeForTopic,
)
from spark_stream.errors import (
    DataLoss,
    DiskFull,
    InvalidAssignment,
    InvalidConfig,
    InvalidRecord,
    InvalidRequest,
    InvalidTopic,
    InvalidTransaction,
    IsologError,
    LeaderUnavailable,
    NotEnoughReplicas,
    OffsetEvicted,
    OffsetOutOfRange,
    OutOfOrderSequence,
    PermissionDenied,
    ProducerFenced,
    RecordTooLarge,
    RequestTimeout,
    SchemaMismatch,
    StorageFailure,
    TopicExists,
    TransactionAborted,
    Unauthenticated,
    UnknownPartition,
    UnknownTopic,
    UnknownTransaction,
)


class KafkaCode(IntEnum):
    """The error codes of Kafka's protocol that the gateway sends."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    MESSAGE_TOO_LARGE = 10
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    NOT_ENOUGH_REPLICAS = 19
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_TRANSACTION_TIMEOUT = 50
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    UNSUPPORTED_COMPRESSION_TYPE = 76
    MEMBER_ID_REQUIRED = 79
    INVALID_RECORD = 87
    PRODUCER_FENCED = 90
    UNKNOWN_TOPIC_ID = 100
    TRANSACTIONAL_ID_NOT_FOUND = 105
    MISMATCHED_ENDPOINT_TYPE = 114


class Refusal(Exception):
    """The refusal of a request, or of a part of it. ``code``: the error code of the answer."""

    code: ClassVar[KafkaCode] = KafkaCode.UNKNOWN_SERVER_ERROR


class MalformedRequest(Refusal):
    """The error for a request whose bytes do not follow its schema."""

    code = KafkaCode.INVALID_REQUEST


class LoginFailed(Refusal):
    """The error for a login that failed."""

    code = KafkaCode.SASL_AUTHENTICATION_FAILED


class LoginEnded(Exception):
    """The error for a login that the brokers do not accept any more. It ends the connection."""


class OutOfSequence(Refusal):
    """The error for a login out of its order."""

    code = KafkaCode.ILLEGAL_SASL_STATE


class InvalidPartitions(Refusal):
    """The error for a number of partitions that a topic cannot have."""

    code = KafkaCode.INVALID_PARTITIONS


class InvalidReplicationFactor(Refusal):
    """The error for a number of replicas that a topic cannot have."""

    code = KafkaCode.INVALID_REPLICATION_FACTOR


class InvalidReplicaAssignment(Refusal):
    """The error for a client that chooses the brokers of partitions."""

    code = KafkaCode.INVALID_REPLICA_ASSIGNMENT


class InvalidAcks(Refusal):
    """The error for a number of acknowledgements other than -1, 0 and 1."""

    code = KafkaCode.INVALID_REQUIRED_ACKS


class UnansweredFailure(Refusal):
    """The error for a request that has no answer. Its connection ends."""


class CorruptBatch(Refusal):
    """The error for a batch whose bytes contradict each other, or its checksum."""

    code = KafkaCode.CORRUPT_MESSAGE


class InvalidRecords(Refusal):
    """The error for intact records that a topic cannot store."""

    code = KafkaCode.INVALID_RECORD


class UnsupportedBatch(Refusal):
    """The error for a batch that the gateway does not take."""

    code = KafkaCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


class UnsupportedCompression(Refusal):
    """The error for a compression that the message format does not have."""

    code = KafkaCode.UNSUPPORTED_COMPRESSION_TYPE


class LateGeneration(Refusal):
    """The error for a generation of a group that does not exist."""

    code = KafkaCode.ILLEGAL_GENERATION


class AbortableFailure(Refusal):
    """The error for a transaction that cannot be committed. The client aborts it."""

    code = KafkaCode.INVALID_TXN_STATE


class NotCoordinator(Refusal):
    """The error for a request about a transaction at a gateway that does not coordinate it."""

    code = KafkaCode.NOT_COORDINATOR


class BatchTooLarge(Refusal):
    """The error for a batch that is larger than a limit after its decompression."""

    code = KafkaCode.MESSAGE_TOO_LARGE


_CODES: Final[dict[type[IsologError], KafkaCode]] = {
    InvalidRequest: KafkaCode.INVALID_REQUEST,
    InvalidConfig: KafkaCode.INVALID_CONFIG,
    InvalidAssignment: KafkaCode.INVALID_REPLICATION_FACTOR,  # of too many replicas
    InvalidTopic: KafkaCode.INVALID_TOPIC_EXCEPTION,
    TopicExists: KafkaCode.TOPIC_ALREADY_EXISTS,
    UnknownTopic: KafkaCode.UNKNOWN_TOPIC_OR_PARTITION,
    UnknownPartition: KafkaCode.UNKNOWN_TOPIC_OR_PARTITION,
    OffsetOutOfRange: KafkaCode.OFFSET_OUT_OF_RANGE,
    OffsetEvicted: KafkaCode.OFFSET_OUT_OF_RANGE,
    DataLoss: KafkaCode.OFFSET_OUT_OF_RANGE,
    LeaderUnavailable: KafkaCode.LEADER_NOT_AVAILABLE,
    RequestTimeout: KafkaCode.REQUEST_TIMED_OUT,
    NotEnoughReplicas: KafkaCode.NOT_ENOUGH_REPLICAS,
    RecordTooLarge: KafkaCode.MESSAGE_TOO_LARGE,
    TooLargeForTopic: KafkaCode.MESSAGE_TOO_LARGE,
    SchemaMismatch: KafkaCode.INVALID_RECORD,
    InvalidRecord: KafkaCode.INVALID_RECORD,
    OutOfOrderSequence: KafkaCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ProducerFenced: KafkaCode.INVALID_PRODUCER_EPOCH,
    TransactionAborted: KafkaCode.INVALID_TXN_STATE,
    InvalidTransaction: KafkaCode.INVALID_TXN_STATE,
    UnknownTransaction: KafkaCode.INVALID_TXN_STATE,
    DiskFull: KafkaCode.KAFKA_STORAGE_ERROR,
    StorageFailure: KafkaCode.KAFKA_STORAGE_ERROR,
}


_DENIED: Final = {
    "topic": KafkaCode.TOPIC_AUTHORIZATION_FAILED,
    "consumer": KafkaCode.GROUP_AUTHORIZATION_FAILED,
    "transaction": KafkaCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
"""The error codes for operations that are not allowed, by the kind of their resource.

No request of the gateway needs a permission on the cluster.
"""


def code_of(error: Exception) -> KafkaCode:
    """Return the error code for an error of a broker, or for a refusal.

    A client repeats a request after a retriable code.

    Raises:
        LoginEnded: A broker refused the credential. The client has to log in again.
    """
    if isinstance(error, Unauthenticated):
        raise LoginEnded(error.message)
    if isinstance(error, Refusal):
        return error.code
    if isinstance(error, PermissionDenied):
        resource = str(error.details.get("resource"))
        return _DENIED.get(resource.partition(":")[0], KafkaCode.CLUSTER_AUTHORIZATION_FAILED)
    for kind in type(error).__mro__:
        if kind in _CODES:
            return _CODES[kind]
    if isinstance(error, IsologError) and error.retriable:
        return KafkaCode.NOT_LEADER_OR_FOLLOWER
    return KafkaCode.UNKNOWN_SERVER_ERROR


def error_fields(error: Exception) -> dict[str, Any]:
    """Return the fields of an answer with the error code and the message of an error."""
    message = error.message if isinstance(error, IsologError) else str(error)
    return {"error_code": int(code_of(error)), "error_message": message}
