"""The limits that client and broker share, with their reasons. Sizes in bytes, times in seconds."""

from __future__ import annotations

from typing import Final

BATCH_BYTES_MAX: Final = 256 << 20
"""One appended batch. A frame's body has at most 1 GiB, and a batch is in memory a few times."""

CONTROL_BYTES_MAX: Final = 16 << 20
"""One ticket, action body, envelope or answer.

The largest in use are a commit with the positions of a consumer of 100,000 partitions, and the list
of 40,000 transactional ids. A frame has them in its body. Its header has at most
``ConnectionLimits.header_bytes_max``.
"""

ERROR_BYTES_MAX: Final = 2_000
"""The text of an error that ends a call of Flight. It travels in gRPC's trailers, some of it three
times. Beyond 8 KiB gRPC drops some of the trailers, beyond 16 KiB all, and with them the error.
"""

WAIT_MS_MAX: Final = 60_000
"""A long poll. A longer one would hide a dead peer, and the client can poll again."""

FETCH_BYTES_DEFAULT: Final = 32 << 20
"""The size of our client's fetch: large enough to be efficient, small enough for a deadline."""

FILTER_CHARACTERS_MAX: Final = 64 << 10
"""The text of a filter: a list of some thousand values. To parse so much takes a broker a second at
most, and it caches the result."""

REQUEST_TIMEOUT_S: Final = 30.0
"""A client's timeout for a call without a wait at the broker."""

FORMAT_VERSION: Final = 1
"""The format of the log directories that this release's brokers open and make."""

SOCKET_PATH_MAX: Final = 103
"""Bytes of a Unix socket's path. sun_path has 104 on macOS and 108 on Linux, with a NUL."""

TRANSACTION_TIMEOUT_MS_MAX: Final = 24 * 3_600_000
"""An open transaction blocks readers of committed records, so a day is enough."""
QUERY_NAME_LENGTH_MAX: Final = 255
"""Characters of a query's name beside its transaction. Spark allows any length."""
SESSION_MS_MIN: Final = 1_000
SESSION_MS_MAX: Final = 3_600_000
"""The least and the greatest session timeout of a member of a consumer group."""
