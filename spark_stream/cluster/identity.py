"""Which cluster a store belongs to: one record, made once and never changed.

It also holds the cluster's secret, by which its brokers recognise one another. The record never
leaves the brokers: no message and no log line has the secret.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from dataclasses import dataclass, field
from typing import Final

from spark_stream.cluster.stores.store import MetadataStore
from spark_stream.environment import Ids
from spark_stream.errors import WrongCluster

CLUSTER: Final = "cluster"
_SECRET_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class ClusterSecret:
    """A key that only the brokers of a cluster have. What travels are proofs made with it."""

    _key: bytes = field(repr=False)

    def prove(self, *facts: str) -> str:
        """Return a proof that its maker has the key and states these facts."""
        text = json.dumps(facts).encode()  # unambiguous, whatever characters the facts have
        return hmac.new(self._key, text, hashlib.sha256).hexdigest()

    def key_for(self, purpose: str) -> bytes:
        """Return a key for this purpose alone."""
        return hmac.new(self._key, f"key for {purpose}".encode(), hashlib.sha256).digest()

    def has_proven(self, proof: str, *facts: str) -> bool:
        """Return whether :meth:`prove` made the proof, with this key, of these facts."""
        return hmac.compare_digest(proof.encode(), self.prove(*facts).encode())


def cluster_identity(
    store: MetadataStore, ids: Ids, known: str | None
) -> tuple[str, ClusterSecret]:
    """Return the id and the secret of the store's cluster; a store without them gets them.

    ``known`` is the id in a broker's directory; None for a new directory.

    Raises:
        WrongCluster: the directory belongs to another cluster.
    """
    record = store.get(CLUSTER)
    while record is None:
        made = {"id": known or ids.new_id(), "secret": secrets.token_hex(_SECRET_BYTES)}
        store.put(CLUSTER, made, expected=0)
        record = store.get(CLUSTER)  # another broker may have been first
    found = str(record.value["id"])
    if known is not None and known != found:
        raise WrongCluster(
            f"this directory belongs to cluster {known}, the metadata store to cluster {found}",
            hint="Give the broker the metadata store of its own cluster, or an empty directory.",
            directory=known,
            store=found,
        )
    return found, ClusterSecret(bytes.fromhex(str(record.value["secret"])))
