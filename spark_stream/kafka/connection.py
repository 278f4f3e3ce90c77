"""One connection of a Kafka client, without its socket: bytes in, requests out, and answers.

A client may send several requests before the first answer. The answers have the order of the
requests. A request of Kafka that is not served gets an error code as its answer, also if only its
version is not. Other bytes end the connection.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from spark_stream.kafka.messages.reading import MessageReader, read_message
from spark_stream.kafka.messages.schemas import Versions, load_schema, request_names
from spark_stream.kafka.messages.writing import write_message
from spark_stream.kafka.refusals import KafkaCode, MalformedRequest

SERVED: Final[dict[str, Versions]] = {
    "Produce": Versions(3, 9),
    "Fetch": Versions(4, 12),
    "ListOffsets": Versions(1, 6),
    "Metadata": Versions(0, 12),
    "ApiVersions": Versions(0, 3),
    "InitProducerId": Versions(0, 4),
    "AddPartitionsToTxn": Versions(0, 3),
    "AddOffsetsToTxn": Versions(0, 3),
    "TxnOffsetCommit": Versions(0, 3),
    "EndTxn": Versions(0, 3),
    "ListTransactions": Versions(0, 1),
    "DescribeTransactions": Versions(0, 0),
    "FindCoordinator": Versions(0, 4),
    "JoinGroup": Versions(0, 4),
    "SyncGroup": Versions(0, 2),
    "Heartbeat": Versions(0, 2),
    "LeaveGroup": Versions(0, 2),
    "OffsetCommit": Versions(2, 6),
    "OffsetFetch": Versions(1, 7),
    "ListGroups": Versions(0, 4),
    "DescribeGroups": Versions(0, 5),
    "DeleteGroups": Versions(0, 2),
    "CreateTopics": Versions(2, 6),
    "DeleteTopics": Versions(1, 5),
    "CreatePartitions": Versions(0, 3),
    "DeleteRecords": Versions(0, 2),
    "DescribeConfigs": Versions(1, 4),
    "AlterConfigs": Versions(0, 2),
    "IncrementalAlterConfigs": Versions(0, 1),
    "DescribeCluster": Versions(0, 2),
    "DescribeLogDirs": Versions(1, 4),
    "SaslHandshake": Versions(0, 1),
    "SaslAuthenticate": Versions(0, 2),
}
"""The requests that the gateway answers, and their versions.

From version 13 on Produce and Fetch name topics by their ids, and so do later versions of
CreateTopics and DeleteTopics. The versions of requests about groups end before those with static
members.
"""

FRAME_MAX: Final = 100 << 20
"""The most bytes of a request. Kafka's default of ``socket.request.max.bytes``."""

_SIZE: Final = struct.Struct(">i")
_HEADER: Final = struct.Struct(">hhi")
_ERROR: Final = "error_code"


class KafkaRequest(Struct, frozen=True):
    """A request. ``api``: its name, such as ``Fetch``. ``fields``: by their names.

    ``unsupported``: the answer to it is this error code.
    """

    api: str
    version: int
    correlation_id: int
    client_id: str
    fields: dict[str, Any]
    unsupported: KafkaCode | None = None


_TOKEN_VERSION: Final = -1
"""The version of a login whose token has no header of a request."""

_TLS_HELLO: Final = b"\x16\x03"


class KafkaConnection:
    """The received bytes of a connection.

    ``size_max``: the most bytes of a request. ``expects_token``: the next bytes are the token of a
    login, without the header of a request.
    """

    def __init__(self) -> None:
        self.size_max = FRAME_MAX
        self.expects_token = False
        self._data = bytearray()

    @property
    def incomplete(self) -> int:
        """The size of the request of which only a part was received, in bytes. 0 without one."""
        if len(self._data) < _SIZE.size:
            return 0
        return int(_SIZE.unpack_from(self._data)[0])

    def receive(self, data: bytes) -> Iterator[KafkaRequest]:
        """Yield the requests that are complete with these bytes.

        Raises:
            MalformedRequest: The bytes are no request. The connection cannot be used any more.
        """
        self._data += data
        while len(self._data) >= _SIZE.size:
            (size,) = _SIZE.unpack_from(self._data)
            if not (0 if self.expects_token else _HEADER.size) <= size <= self.size_max:
                if self._data.startswith(_TLS_HELLO):
                    raise MalformedRequest("the client uses TLS, and the gateway has no --tls-cert")
                raise MalformedRequest(
                    f"a request has {size} bytes: it does not follow Kafka's protocol"
                )
            end = _SIZE.size + size
            if len(self._data) < end:
                return
            frame = bytes(memoryview(self._data)[_SIZE.size : end])
            del self._data[:end]
            if self.expects_token:
                yield KafkaRequest("SaslAuthenticate", _TOKEN_VERSION, 0, "", {"auth_bytes": frame})
            else:
                yield read_request(frame)


def read_request(frame: bytes) -> KafkaRequest:
    """Return the request in a frame, without its length.

    Raises:
        MalformedRequest: The frame does not follow the schema of the request.
    """
    data = memoryview(frame)
    key, version, correlation_id = _HEADER.unpack_from(frame)
    api = request_names().get(key)
    if api is None:
        raise MalformedRequest(f"there is no request with the key {key}")
    schema = load_schema(f"{api}Request")
    if version not in SERVED.get(api, Versions()):
        unsupported = KafkaCode.UNSUPPORTED_VERSION
        # A client sends the latest version first, and continues with one of the answer.
        known = version if version in schema.versions else schema.versions.first
        used = 0 if api == "ApiVersions" else known
        return KafkaRequest(api, used, correlation_id, "", {}, unsupported)
    client_id, at = _client_id(data, _HEADER.size)
    if version in schema.flexible:
        at = _after_tags(data, at)
    return KafkaRequest(
        api, version, correlation_id, client_id, read_message(schema, version, data[at:])
    )


def _client_id(data: memoryview, at: int) -> tuple[str, int]:
    if len(data) < at + 2:
        raise MalformedRequest("a request ends in its header")
    (size,) = struct.unpack_from(">h", data, at)
    at += 2
    if size < -1 or at + size > len(data):
        raise MalformedRequest(f"the client id of a request has {size} bytes")
    return str(data[at : at + max(size, 0)], "utf-8", "replace"), at + max(size, 0)


def _after_tags(data: memoryview, at: int) -> int:
    """Return the place after the tagged fields of a header, which are not used."""
    if at < len(data) and not data[at]:
        return at + 1
    reader = MessageReader(data[at:])
    for _ in range(reader.count(reader.uvarint())):
        reader.uvarint()
        reader.take(reader.uvarint())
    return len(data) - reader.left


def answer(request: KafkaRequest, values: Mapping[str, Any]) -> list[bytes]:
    """Return the parts of an answer, with its length.

    A failed login without a frame of SaslAuthenticate gets no answer: the list is empty.

    Args:
        request: The request.
        values: The fields of the response. Others have their defaults.
    """
    if request.version == _TOKEN_VERSION:
        return [] if values.get(_ERROR) else [_SIZE.pack(0)]
    schema = load_schema(f"{request.api}Response")
    parts = write_message(schema, request.version, values)
    head = _SIZE.pack(request.correlation_id)
    # Clients read the answer to ApiVersions before they know the versions of the server.
    if request.version in schema.flexible and request.api != "ApiVersions":
        head += b"\0"
    size = len(head) + sum(len(each) for each in parts)
    return [_SIZE.pack(size) + head, *parts]


def refuse(request: KafkaRequest, code: KafkaCode) -> list[bytes]:
    """Return the answer to a request that fails as a whole, if it :func:`has_error`."""
    return answer(request, {_ERROR: int(code)})


def has_error(request: KafkaRequest) -> bool:
    """Return whether the answer to a request has an error code for the whole request."""
    fields = load_schema(f"{request.api}Response").fields
    return any(each.name == _ERROR and request.version in each.versions for each in fields)
