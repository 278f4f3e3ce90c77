"""The history of a cluster: one sample every 15 seconds for a day, in a ring of fixed size.

The file has a header and 5,760 slots of 1 KiB. The slot of a sample follows from its time, so a
sample replaces the one of the day before, and the file never grows. Each slot has a checksum: a
torn write loses one sample. There is no fsync: a crash of the machine may lose the last samples.

A file that isolog did not write is refused, and a damaged one is replaced. One process uses a file.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from spark_stream.errors import InvalidOption
from spark_stream.loggers import logger_of
from spark_stream.operating_system import lock

logger = logger_of(__name__)

STEP_MS: Final = 15_000
SLOTS: Final = 24 * 3_600_000 // STEP_MS
FIGURES: Final = ("alive", "out_of_sync", "offline", "records_per_s", "lag", "oldest_open_s")
_MAGIC: Final = b"isolog console history 1\n"
_KIND: Final = b"isolog console history "
_SLOT_BYTES: Final = 1024  # of the header as well
_PREFIX_BYTES: Final = 6  # checksum and length
_FILE_BYTES: Final = (1 + SLOTS) * _SLOT_BYTES
_BUCKET: Final = 20  # samples in a point of a chart, 5 minutes
_GAP_MS: Final = 600_000
"""The longest pause of the console after which a problem keeps its start."""


class HistorySample(Struct, frozen=True, omit_defaults=True):
    """The figures of a cluster at a time. An unknown figure is None.

    ``out_of_sync``: replicas outside the ISR. ``offline``: partitions without a leader. ``lag``:
    records, of all readers. ``problems``: the start of each problem, by its key.
    """

    at_ms: int
    alive: int | None = None
    out_of_sync: int | None = None
    offline: int | None = None
    records_per_s: float | None = None
    lag: int | None = None
    oldest_open_s: float | None = None
    problems: dict[str, int] = {}


class History:
    """The samples of the last day, in memory, and in a file if one is given."""

    def __init__(self, file: Path | None = None) -> None:
        """Open the file, or create it.

        Raises:
            InvalidOption: another console uses the file, isolog did not write it, or it is
                unusable.
        """
        self._samples: list[HistorySample | None] = [None] * SLOTS
        self._opened: int | None = None
        self._latest_ms = 0
        if file is not None:
            try:
                self._opened = _open(file)
                self._load(file)
            except OSError as error:
                raise InvalidOption(
                    f"the history {file} is unusable: {error.strerror}",
                    hint="Give another file with --history.",
                    option="--history",
                ) from None

    def is_due(self, now_ms: int) -> bool:
        """Return whether the next sample is due."""
        return now_ms // STEP_MS != self._latest_ms // STEP_MS

    @property
    def latest_ms(self) -> int:
        """The time of the latest sample of this process, 0 without one."""
        return self._latest_ms

    def add(self, sample: HistorySample) -> None:
        """Store a sample. Problems that do not fit into its slot are left out."""
        text = msgspec.json.encode(sample)
        while len(text) > _SLOT_BYTES - _PREFIX_BYTES:
            kept = dict(sorted(sample.problems.items(), key=lambda each: len(each[0]))[:-1])
            sample = replace(sample, problems=kept)
            text = msgspec.json.encode(sample)
        slot = sample.at_ms // STEP_MS % SLOTS
        self._samples[slot] = sample
        self._latest_ms = sample.at_ms
        if self._opened is None:
            return
        try:
            os.pwrite(self._opened, _framed(text), (1 + slot) * _SLOT_BYTES)
        except OSError as error:
            logger.warning("a sample of the history was not written: %s", error.strerror)

    def samples(self, now_ms: int) -> Iterator[HistorySample]:
        """Yield the samples of the last day, the oldest first."""
        first = now_ms - SLOTS * STEP_MS
        found = [
            each for each in self._samples if each is not None and first < each.at_ms <= now_ms
        ]
        yield from sorted(found, key=lambda each: each.at_ms)

    def starts(self, now_ms: int) -> dict[str, int]:
        """Return the starts of the problems of the latest sample, unless it is old."""
        latest = max(self.samples(now_ms), key=lambda each: each.at_ms, default=None)
        return latest.problems if latest is not None and now_ms - latest.at_ms <= _GAP_MS else {}

    def curves(self, now_ms: int) -> dict[str, Any]:
        """Return the largest value of each figure in every five minutes, the oldest first.

        The fewest brokers count. A time without samples has None.
        """
        width = STEP_MS * _BUCKET
        count = SLOTS // _BUCKET
        end = now_ms // width + 1
        found: dict[str, list[float | None]] = {name: [None] * count for name in FIGURES}
        for sample in self.samples(now_ms):
            place = sample.at_ms // width - (end - count)
            for name, values in found.items():
                value, before = getattr(sample, name), values[place] if place >= 0 else None
                if value is not None and place >= 0:
                    worst = min if name == "alive" else max
                    values[place] = value if before is None else worst(value, before)
        return {"end_ms": end * width, "step_ms": width, "figures": found}

    def close(self) -> None:
        """Close the file."""
        if self._opened is not None:
            os.close(self._opened)
            self._opened = None

    def _load(self, file: Path) -> None:
        assert self._opened is not None
        data = os.pread(self._opened, _FILE_BYTES, 0)
        damaged = 0
        for slot in range(SLOTS):
            framed = data[(1 + slot) * _SLOT_BYTES : (2 + slot) * _SLOT_BYTES]
            if not any(framed):
                continue
            sample = _unframed(framed)
            if sample is None or sample.at_ms // STEP_MS % SLOTS != slot:
                damaged += 1
            else:
                self._samples[slot] = sample
        if damaged:
            logger.warning("history %s: left out %d damaged samples", file, damaged)


def _open(file: Path) -> int:
    """Open a history, and lock it. Create it, or replace it if it is a damaged history."""
    opened = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if not lock(opened):
            raise InvalidOption(
                f"another console uses the history {file}",
                hint="Give each console another file with --history.",
                option="--history",
            )
        size, head = os.fstat(opened).st_size, os.pread(opened, len(_MAGIC), 0)
        if size and not head.startswith(_KIND):
            raise InvalidOption(
                f"{file} is not a history of a console",
                hint="Give another file with --history. isolog does not replace this one.",
                option="--history",
            )
        if size and (head != _MAGIC or size != _FILE_BYTES):
            logger.warning(
                "history %s: replaced, because it is damaged or of another release", file
            )
        if head != _MAGIC or size != _FILE_BYTES:
            os.ftruncate(opened, 0)
            os.ftruncate(opened, _FILE_BYTES)
            os.pwrite(opened, _MAGIC, 0)
    except BaseException:
        os.close(opened)
        raise
    return opened


def _framed(text: bytes) -> bytes:
    body = len(text).to_bytes(2, "big") + text
    return (zlib.crc32(body).to_bytes(4, "big") + body).ljust(_SLOT_BYTES, b"\0")


def _unframed(framed: bytes) -> HistorySample | None:
    """Return the sample in a slot, None if the slot is damaged."""
    size = int.from_bytes(framed[4:6], "big")
    body = framed[4 : _PREFIX_BYTES + size]
    if zlib.crc32(body).to_bytes(4, "big") != framed[:4]:
        return None
    try:
        return msgspec.json.decode(framed[_PREFIX_BYTES : _PREFIX_BYTES + size], type=HistorySample)
    except msgspec.MsgspecError:
        return None
