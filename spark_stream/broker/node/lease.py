"""A broker's lease, as the broker lives by it: it leads only while its own clock says so.

If the lease has run out meanwhile (the process was paused), others may lead by now. So the broker
takes a new one, and leads again only after it has read the records again.
"""

from __future__ import annotations

from collections.abc import Callable

from spark_stream.cluster.stores.leases import Lease, Leases
from spark_stream.errors import StorageFailure
from spark_stream.loggers import logger_of

logger = logger_of(__name__)


class LeaseKeeper:
    """One incarnation's lease, from construction to :meth:`end`."""

    def __init__(
        self, leases: Leases, broker_id: str, incarnation: str, refresh: Callable[[], None]
    ) -> None:
        """``refresh`` reads the records again, and acts on them."""
        self._hold: Callable[[Lease | None], Lease] = lambda after: leases.hold(
            broker_id, incarnation, after
        )
        self._refresh = refresh
        self._lease = self._hold(None)
        self._has_looked = True  # at the records, since it has this lease
        self.failure: StorageFailure | None = None
        """The error of the last renewal; None if it succeeded."""

    def serves(self) -> bool:
        """Return whether the broker may lead at this moment."""
        return self._has_looked and self._lease.may_serve()

    def renew(self) -> None:
        """Renew the lease; to be called several times before it runs out."""
        try:
            self._renew()
        except StorageFailure as error:
            self.failure = error
            raise
        self.failure = None

    def _renew(self) -> None:
        if not self._lease.renew():
            if self._has_looked:
                logger.warning(
                    "the lease was over: others may lead what this broker led, unless its followers"
                    " have promised that they do not"
                )
            self._has_looked = False
            self._lease = self._hold(self._lease)
        if not self._has_looked:
            self._refresh()
            self._has_looked = True

    def end(self) -> None:
        """Release the lease, so that others see that it is over."""
        self._lease.release()
