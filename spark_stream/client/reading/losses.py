"""What a consumer does when records were removed or cut off.

Two things remove records from a log: retention, at its start, and a failover, which may cut off
what was never replicated. A consumer that has read, or is at, such records gets an error; or, with
``on_loss="continue"``, it logs a warning and continues with what is left.
"""

from __future__ import annotations

from spark_stream.errors import DataLoss, InvalidOption, IsologError, OffsetEvicted
from spark_stream.loggers import logger_of

logger = logger_of(__name__)

FAIL = "fail"
CONTINUE = "continue"
_HINT = "To go on with what is left, make the consumer with on_loss='continue'."


def fails_on(choice: str) -> bool:
    """Return whether a loss is an error; raise InvalidOption for an unknown choice."""
    if choice not in (FAIL, CONTINUE):
        raise InvalidOption(
            f"on_loss takes {FAIL} | {CONTINUE}, not {choice!r}", option="on_loss", value=choice
        )
    return choice == FAIL


def where_to_go_on(error: IsologError, *, fail: bool) -> int:
    """Return the offset of what is left after this error, or raise it if ``fail``.

    Raises:
        DataLoss, OffsetEvicted: that error.
    """
    name = "left" if isinstance(error, DataLoss) else "log_start_offset"
    left = error.details.get(name)
    if fail or not isinstance(left, int):
        if isinstance(error, DataLoss):
            raise DataLoss(error.message, hint=_HINT, **error.details) from None
        raise error
    logger.warning("%s; going on at offset %d (on_loss is continue)", error.message, left)
    return left


GONE = (DataLoss, OffsetEvicted)
"""The errors of a loss."""
