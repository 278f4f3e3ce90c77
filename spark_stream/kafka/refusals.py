"""Kafka's error codes, and the exceptions for data that a Kafka client may not send.

Source: https://kafka.apache.org/protocol#protocol_error_codes.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar


class KafkaCode(IntEnum):
    """The error codes of Kafka's protocol that the gateway sends."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    MESSAGE_TOO_LARGE = 10
    INVALID_REQUEST = 42
    UNSUPPORTED_COMPRESSION_TYPE = 76
    INVALID_RECORD = 87


class Refusal(Exception):
    """The refusal of a request, or of a part of it. ``code``: the error code of the answer."""

    code: ClassVar[KafkaCode] = KafkaCode.UNKNOWN_SERVER_ERROR


class MalformedRequest(Refusal):
    """The error for a request whose bytes do not follow its schema."""

    code = KafkaCode.INVALID_REQUEST


class CorruptBatch(Refusal):
    """The error for a batch whose bytes contradict each other, or its checksum."""

    code = KafkaCode.CORRUPT_MESSAGE


class InvalidRecords(Refusal):
    """The error for intact records that a topic cannot store."""

    code = KafkaCode.INVALID_RECORD


class UnsupportedCompression(Refusal):
    """The error for a compression that the message format does not have."""

    code = KafkaCode.UNSUPPORTED_COMPRESSION_TYPE


class BatchTooLarge(Refusal):
    """The error for a batch that is larger than a limit after its decompression."""

    code = KafkaCode.MESSAGE_TOO_LARGE
