"""A broker's contact with the metadata store, and the use of its last view in an outage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from spark_stream.environment import Clock
from spark_stream.errors import MetadataLost, MetadataUnavailable

_AWAY_S: Final = 2.0


def _serves_always() -> bool:
    return True


class StoreContact:
    """One broker's contact with the metadata store, for any thread."""

    def __init__(
        self,
        broker_id: str,
        clock: Clock,
        refresh: Callable[[], None],
        others_are_cut_off: Callable[[], bool],
    ) -> None:
        """Create the contact.

        ``refresh`` reads all earlier changes and acts on them. It may fail. ``others_are_cut_off``
        returns whether other brokers certainly cannot reach the store either.
        """
        self._broker_id = broker_id
        self._clock = clock
        self._refresh = refresh
        self._others_are_cut_off = others_are_cut_off
        self.serves: Callable[[], bool] = _serves_always
        """Whether this broker's lease lasts."""
        self._away_until = 0.0  # by the monotonic clock: the store did not answer a moment ago

    def try_refresh(self) -> None:
        """Read the earlier changes, or continue with the last view if the store does not answer.

        In an outage the last view is better than none. After a failure the store gets no new
        request for ``_AWAY_S``.

        Raises:
            MetadataUnavailable: as :meth:`check_may_answer`.
        """
        if self._clock.monotonic() >= self._away_until:
            try:
                self._refresh()
                return
            except (MetadataUnavailable, MetadataLost):
                self._away_until = self._clock.monotonic() + _AWAY_S
        self.check_may_answer()

    def refresh_unless_all_are_cut_off(self) -> None:
        """Read the changes, unless this broker and others are cut off from the store.

        Then leaders lead by promises (``consistency.replication.promises``), and no leader is
        replaced: the last view before the outage is still true.

        Raises:
            MetadataUnavailable: The store cannot be reached, and other brokers may not be cut off
                from it.
        """
        if self.serves() or not self._others_are_cut_off():
            self._refresh()

    def check_may_answer(self) -> None:
        """Check that this broker may answer from its last view.

        It may while its lease lasts, or if other brokers are cut off from the store too.

        Raises:
            MetadataUnavailable: The lease expired, and other brokers may be able to reach the
                store. So the leaders in this broker's view may have been replaced.
        """
        if not (self.serves() or self._others_are_cut_off()):
            raise MetadataUnavailable(
                f"broker {self._broker_id} cannot reach the metadata store, but other brokers may"
            )
