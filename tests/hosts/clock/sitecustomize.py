"""Sets the wall clock of a Python process wrong, by ``ISOLOG_CLOCK_OFFSET_S`` seconds.

Python imports this at its start, if this folder is on its path. The monotonic clock stays right.
"""

import os
import time

_OFFSET_S = int(os.environ.get("ISOLOG_CLOCK_OFFSET_S", "0"))
_right, _right_ns = time.time, time.time_ns


def _time() -> float:
    return _right() + _OFFSET_S


def _time_ns() -> int:
    return _right_ns() + _OFFSET_S * 1_000_000_000


time.time, time.time_ns = _time, _time_ns
