"""A broker's lease, as the broker lives by it: it leads only while its own clock says so.

The broker ceases to lead a little before the lease is over for others. If it was over in between
(the process had stood still), others may lead by now: the broker leads again only after it has seen
the records anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from spark_stream.cluster.leases import Lease, Leases

logger = logging.getLogger(__name__)

_MARGIN_S: Final = 0.2
"""So long before the end of the lease the broker stops: an answer that it gives takes some time."""


class Tenure:
    """One incarnation's lease, from construction to :meth:`end`."""

    def __init__(
        self, leases: Leases, broker_id: str, incarnation: str, refresh: Callable[[], None]
    ) -> None:
        """``refresh``: sees the records anew, and acts on them."""
        self._hold: Callable[[], Lease] = lambda: leases.hold(broker_id, incarnation)
        self._refresh = refresh
        self._lease = self._hold()
        self._lapsed = False

    def serves(self) -> bool:
        """Whether the broker may lead at this moment."""
        return not self._lapsed and self._lease.left_s() > _MARGIN_S

    def renew(self) -> None:
        """Renews the lease; to be called several times in its duration."""
        if self._lease.left_s() <= 0:
            self._lapsed = True
        if not self._lease.renew():
            self._lapsed = True
            self._lease.release()
            self._lease = self._hold()  # its file may be gone, by whoever cleared the folder
        if self._lapsed:
            logger.warning("the lease was over: other brokers may lead what this one led")
            self._refresh()
            self._lapsed = False

    def end(self) -> None:
        """Whoever looks finds the lease over."""
        self._lapsed = True
        self._lease.release()
