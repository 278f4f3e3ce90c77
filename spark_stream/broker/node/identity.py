"""Which broker this is, and how two brokers prove to each other that they are of one cluster.

The cluster's secret is never sent. A caller sends a proof: a keyed hash of its own id and of the id
and incarnation of the broker that it means to call. Another process that listens at the address of
a dead broker gets a proof that no other broker accepts. It cannot answer either: the proof of an
answer covers a number that the caller has just made.

:meth:`BrokerIdentity.check_caller` is the only place that decides whether a caller is a broker of
this cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from spark_stream.cluster.brokers import ClusterSecret
from spark_stream.consistency.ids import BrokerId
from spark_stream.errors import Unauthenticated

_CALL: Final = "call"
_ANSWER: Final = "answer"


class Endpoint(Struct, frozen=True):
    """Where a broker listens, and which of its incarnations does."""

    address: str
    incarnation: str


class BrokerIdentity(Struct, frozen=True):
    """This broker: its cluster, its id, this start of it, and the cluster's secret."""

    cluster_id: str
    broker_id: BrokerId
    incarnation: str
    secret: ClusterSecret

    def call_proof(self, broker_id: str, incarnation: str) -> str:
        """Return the proof that a call from this broker to another one carries."""
        return self.secret.prove(_CALL, self.broker_id, broker_id, incarnation)

    def check_caller(self, caller: str, proof: str, names: Sequence[str] = ()) -> None:
        """Check that the caller is the broker with this id, and that it means to call this one.

        ``names``: those in the caller's certificate, if it has shown one.

        Raises:
            Unauthenticated: the proof is not that broker's, or it was made for another broker or
                for an earlier start of this one; or the certificate is another broker's.
        """
        if names and caller not in names:
            raise Unauthenticated(
                f"the caller says that it is broker {caller}, and its certificate names"
                f" {', '.join(names)}",
                hint="Issue each broker a certificate that has its id among the names.",
            )
        if not self.secret.has_proven(proof, _CALL, caller, self.broker_id, self.incarnation):
            raise Unauthenticated(
                f"the caller has not proved that it is a broker of cluster {self.cluster_id} and"
                f" means to call broker {self.broker_id} as it runs now"
            )

    def answer_proof(self, nonce: str) -> str:
        """Return the proof that this broker's answer to a call with this nonce carries."""
        return self.secret.prove(_ANSWER, self.broker_id, nonce)

    def check_answer(self, broker_id: str, nonce: str, proof: str) -> None:
        """Check that the broker that was called has sent this answer.

        Raises:
            Unauthenticated: another process has sent it.
        """
        if not self.secret.has_proven(proof, _ANSWER, broker_id, nonce):
            raise Unauthenticated(
                f"what answers in the place of broker {broker_id} has not proved that it is a"
                f" broker of cluster {self.cluster_id}"
            )
