"""Whether a broker may rely on what it knows while the metadata store does not answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from spark_stream.environment import Clock
from spark_stream.errors import MetadataUnavailable

_AWAY_S: Final = 2.0


class StoreContact:
    """One broker's contact with the metadata store, for any thread."""

    def __init__(
        self,
        broker_id: str,
        clock: Clock,
        refresh: Callable[[], None],
        has_company: Callable[[], bool],
    ) -> None:
        """``refresh`` sees, and acts on, all that was changed before; it may fail.

        ``has_company`` returns whether other brokers are cut off from the store too.
        """
        self._broker_id = broker_id
        self._clock = clock
        self._refresh = refresh
        self._has_company = has_company
        self.serves: Callable[[], bool] = lambda: True
        """Whether this broker's lease lasts."""
        self._away_until = 0.0  # by the monotonic clock: the store did not answer a moment ago

    def try_refresh(self) -> None:
        """See what was changed before this call, or go on with what is known.

        While the store is away, what was seen last is better than nothing. It is not asked more
        often than once in ``_AWAY_S``.

        Raises:
            MetadataUnavailable: as :meth:`check`.
        """
        if self._clock.monotonic() >= self._away_until:
            try:
                self._refresh()
                return
            except MetadataUnavailable:
                self._away_until = self._clock.monotonic() + _AWAY_S
        self.check()

    def refresh_if_served(self) -> None:
        """See what was changed, unless this broker's lease is over, and those of others too.

        Then whoever leads does so by the promises of all who could replace it.

        Raises:
            MetadataUnavailable: the store is away, and leases may still last.
        """
        if self.serves() or not self._has_company():
            self._refresh()

    def check(self) -> None:
        """Check that others do not know better: this broker is alive for them, or cut off as they.

        Raises:
            MetadataUnavailable: its lease is over, and no other broker is known to be cut off from
                the store too. So others may lead by now what it knows leaders of.
        """
        if not (self.serves() or self._has_company()):
            raise MetadataUnavailable(
                f"broker {self._broker_id} cannot reach the metadata store; other brokers may"
            )
