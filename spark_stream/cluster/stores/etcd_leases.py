"""Leases of brokers in etcd: a key for each broker, which is changed by compare-and-set.

etcd's own leases are not used: a member that was deposed still answers their keepalives, and still
revokes them (etcd#15247, etcd#12528). A key that is seen to change needs a quorum for each change.
"""

from __future__ import annotations

import json
from typing import Any, Final

from spark_stream.cluster.stores.etcd_client import EtcdClient, Json, decoded, encoded
from spark_stream.cluster.stores.leases import DURATION_S, Renewal

_RANGE: Final = "/v3/kv/range"
_TXN: Final = "/v3/kv/txn"


class EtcdLeases:
    """The board of one isolog cluster, ``name``, in an etcd cluster. The client is the caller's."""

    def __init__(self, client: EtcdClient, name: str) -> None:
        self._client = client
        self._prefix = f"/{name}/leases/"

    def take_place(self, broker_id: str, incarnation: str, duration_s: float) -> EtcdLease:
        return EtcdLease(self._client, self._prefix + broker_id, incarnation, duration_s)

    def read(self, broker_id: str) -> Renewal | None:
        found = _found(self._client, self._prefix + broker_id)
        return None if found is None else _renewal(found)


class EtcdLease:
    """One incarnation's key, as long as no other incarnation has taken it."""

    def __init__(self, client: EtcdClient, key: str, incarnation: str, duration_s: float) -> None:
        self._client = client
        self._key = key
        self._incarnation = incarnation
        self._duration_s = duration_s
        answer = client.write("/v3/kv/put", {"key": encoded(key.encode()), "value": self._value(0)})
        self._version = int(answer["header"]["revision"])

    def write(self, count: int) -> bool:
        while True:
            version = self._changed({"request_put": {**self._at, "value": self._value(count)}})
            if version is not None:
                self._version = version
                return True
            # An earlier write that was not answered may have been done: then the key is still ours.
            found = _found(self._client, self._key)
            if found is None or _renewal(found).incarnation != self._incarnation:
                return False
            self._version = int(found["mod_revision"])

    def clear(self) -> None:
        found = _found(self._client, self._key)
        if found is not None and _renewal(found).incarnation == self._incarnation:
            self._version = int(found["mod_revision"])
            self._changed({"request_delete_range": self._at})

    @property
    def _at(self) -> Json:
        return {"key": encoded(self._key.encode())}

    def _value(self, count: int) -> str:
        shown = {"incarnation": self._incarnation, "count": count, "duration_s": self._duration_s}
        return encoded(json.dumps(shown).encode())

    def _changed(self, operation: Json) -> int | None:
        """Change the key if nobody else has; return the new revision, or None."""
        compare = {**self._at, "target": "MOD", "mod_revision": str(self._version)}
        answer = self._client.write(_TXN, {"compare": [compare], "success": [operation]})
        return int(answer["header"]["revision"]) if answer.get("succeeded") else None


def _found(client: EtcdClient, key: str) -> dict[str, Any] | None:
    """Return what a key holds now: reads are linearizable."""
    found = client.read(_RANGE, {"key": encoded(key.encode())}).get("kvs", [])
    return found[0] if found else None


def _renewal(found: dict[str, Any]) -> Renewal:
    try:
        shown = json.loads(decoded(found.get("value")))
        return Renewal(shown["incarnation"], int(shown["count"]), float(shown["duration_s"]))
    except (ValueError, KeyError, TypeError):
        # Somebody has tampered with the key: it is nobody's lease, and is not renewed.
        return Renewal("", 0, DURATION_S)
