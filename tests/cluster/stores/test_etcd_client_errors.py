"""The errors of etcd, without an etcd: two of its releases word them differently."""

from __future__ import annotations

import json
from contextlib import closing

import pytest

from isolog.errors import MetadataRefused, MetadataUnavailable
from spark_stream.cluster.stores.etcd_client import EtcdClient

TO_3_5 = "error"
FROM_3_6 = "message"


@pytest.mark.rule("the errors of etcd", "cluster/stores/etcd_client.py")
@pytest.mark.parametrize("name", [TO_3_5, FROM_3_6])
@pytest.mark.parametrize(
    ("code", "text", "error"),
    [
        (7, "etcdserver: permission denied", MetadataRefused),
        (8, "grpc: received message larger than max (2 vs. 1)", MetadataRefused),
        (14, "etcdserver: request timed out", MetadataUnavailable),
        (3, "etcdserver: revision of auth store is old", MetadataUnavailable),
        (2, "auth token is not given", MetadataUnavailable),
    ],
)
def test_an_error_is_classified_by_its_text(name: str, code: int, text: str, error: type) -> None:
    answer = json.dumps({name: text, "code": code}).encode()
    with closing(EtcdClient(["127.0.0.1:1"], 1.0)) as client:
        with pytest.raises(error, match="etcd at") as raised:
            client._checked("127.0.0.1:1", 500, answer)
        assert text in raised.value.message
