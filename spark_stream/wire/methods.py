"""The methods of the protocol's streams, as OPEN names them (``docs/protocol.md``)."""

from __future__ import annotations

from typing import Final

ACT: Final = "act"
RUN_STEPS: Final = "run-steps"
APPEND: Final = "append"
FETCH: Final = "fetch"
REPLICATE: Final = "replicate"
