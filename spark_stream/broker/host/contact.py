"""Whether a broker may rely on what it knows while the metadata store does not answer."""

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
        """``refresh`` sees, and acts on, all that was changed before; it may fail.

        ``others_are_cut_off`` returns whether it is known of other brokers that they cannot reach
        the store either.
        """
        self._broker_id = broker_id
        self._clock = clock
        self._refresh = refresh
        self._others_are_cut_off = others_are_cut_off
        self.serves: Callable[[], bool] = _serves_always
        """Whether this broker's lease lasts."""
        self._away_until = 0.0  # by the monotonic clock: the store did not answer a moment ago

    def try_refresh(self) -> None:
        """See what was changed before this call, or go on with what is known.

        While the store is away, what was seen last is better than nothing. It is not asked more
        often than once in ``_AWAY_S``.

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
        """See what was changed, unless this broker and others are cut off from the store.

        Then leaders lead by promises (``consistency.replication.promises``), and none is replaced:
        what was known when the store went away is still true.

        Raises:
            MetadataUnavailable: the store is away, and other brokers may not be cut off from it.
        """
        if self.serves() or not self._others_are_cut_off():
            self._refresh()

    def check_may_answer(self) -> None:
        """Check that this broker may answer from what it knows.

        It may while its lease lasts, or others are cut off from the store too.

        Raises:
            MetadataUnavailable: its lease is over, and no other broker is known to be cut off from
                the store too. So others may lead by now what it knows leaders of.
        """
        if not (self.serves() or self._others_are_cut_off()):
            raise MetadataUnavailable(
                f"broker {self._broker_id} cannot reach the metadata store; other brokers may"
            )
