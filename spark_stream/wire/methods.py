"""The methods of the protocol's streams, as OPEN names them (``docs/protocol.md``).

A broker has two doors: one for clients, and one for the other brokers of its cluster. Each method
is served at one of them.
"""

from __future__ import annotations

from typing import Final

AUTHENTICATE: Final = "authenticate"
ACT: Final = "act"
RUN_STEPS: Final = "run-steps"
APPEND: Final = "append"
FETCH: Final = "fetch"
REPLICATE: Final = "replicate"

CLIENT_METHODS: Final = frozenset({AUTHENTICATE, ACT, APPEND, FETCH})
PEER_METHODS: Final = frozenset({RUN_STEPS, REPLICATE})
