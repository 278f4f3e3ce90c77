"""A topic's configuration of its files and replicas, and the notation of its values.

Settings with the meaning of a setting in Kafka have its name. Values arrive as strings or numbers.
An error names the setting with an invalid value.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Final, get_type_hints

from msgspec import Struct

from spark_stream.errors import InvalidConfig
from spark_stream.schema.keys import split_names

KIB: Final = 1024
MIB: Final = 1024 * KIB
HOUR_MS: Final = 3_600_000
_NEAR: Final = 0.65  # with less, `replicas` would mean min.insync.replicas


class Flush(StrEnum):
    """The time of the fsync of appended bytes: never, at an interval, or with each batch."""

    NONE = "none"
    INTERVAL = "interval"
    BATCH = "batch"


class Compression(StrEnum):
    """The compression of batches in the segment files."""

    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"


class AllowedRange(Struct, frozen=True):
    """The range of a number. ``unlimited``: -1 is allowed too and means "no limit"."""

    low: int
    high: int
    unlimited: bool = False


class LogSettings(Struct, frozen=True):
    """A topic's configuration. A field ``segment_bytes`` is the setting ``segment.bytes``."""

    max_record_bytes: Annotated[int, AllowedRange(1, 512 * MIB)] = 16 * MIB
    segment_bytes: Annotated[int, AllowedRange(64 * KIB, 1024 * MIB)] = 256 * MIB
    segment_ms: Annotated[int, AllowedRange(100, 10**15)] = 7 * 24 * HOUR_MS
    segment_entries: Annotated[int, AllowedRange(16, 1 << 22)] = 1 << 18
    retention_ms: Annotated[int, AllowedRange(100, 10**15, unlimited=True)] = -1
    retention_bytes: Annotated[int, AllowedRange(1, 10**18, unlimited=True)] = -1
    local_retention_ms: Annotated[int, AllowedRange(100, 10**15, unlimited=True)] = -1
    local_retention_bytes: Annotated[int, AllowedRange(1, 10**18, unlimited=True)] = -1
    flush: Flush = Flush.NONE
    flush_ms: Annotated[int, AllowedRange(10, 10**9)] = 1_000
    compression: Compression = Compression.NONE
    min_insync_replicas: Annotated[int, AllowedRange(1, 1000)] = 1
    replica_lag_time_max_ms: Annotated[int, AllowedRange(100, 10**9)] = 10_000
    unclean_leader_election: bool = False
    partition_by: tuple[str, ...] = ()

    @property
    def needs_table(self) -> bool:
        """Whether the log keeps each record until the table of a lake has it."""
        return max(self.local_retention_ms, self.local_retention_bytes) >= 0

    @property
    def kept_ms(self) -> int:
        """The time for which the log keeps a record, or -1."""
        local = self.local_retention_ms
        return self.retention_ms if local < 0 else local

    @property
    def kept_bytes(self) -> int:
        """The size that the log keeps, or -1."""
        local = self.local_retention_bytes
        return self.retention_bytes if local < 0 else local


def _setting(field: str) -> str:
    return field.replace("_", ".")


SETTINGS: Final = {_setting(name): name for name in LogSettings.__struct_fields__}
_HINTS: Final = get_type_hints(LogSettings, include_extras=True)


def parse_settings(values: Mapping[str, Any], base: LogSettings | None = None) -> LogSettings:
    """Parse a user's names and values of settings. The other settings stay as in ``base``.

    Raises:
        InvalidConfig: the name of a setting is wrong (the error suggests the nearest right one),
            or a value is outside its range.
    """
    base = base or LogSettings()
    changed = {name: getattr(base, name) for name in LogSettings.__struct_fields__}
    for name, value in values.items():
        field = field_of(name)
        changed[field] = _parse(name, value)
    found = LogSettings(**changed)
    _check_retention("ms", found.local_retention_ms, found.retention_ms)
    _check_retention("bytes", found.local_retention_bytes, found.retention_bytes)
    return found


def field_of(setting: str) -> str:
    """Return the field of a setting. Raise InvalidConfig, with the nearest name, if unknown."""
    if setting not in SETTINGS:
        near = difflib.get_close_matches(setting, SETTINGS, n=1, cutoff=_NEAR)
        guess = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(SETTINGS)}"
        raise InvalidConfig(f"unknown setting {setting!r}{guess}", setting=setting)
    return SETTINGS[setting]


def _check_retention(unit: str, local: int, whole: int) -> None:
    if 0 <= whole < local:
        raise InvalidConfig(
            f"local.retention.{unit} ({local}) is larger than retention.{unit} ({whole})",
            hint="The log keeps a part of the records that the table keeps. Change one"
            " of the two settings.",
            setting=f"local.retention.{unit}",
        )


def shown_settings(settings: LogSettings) -> dict[str, str]:
    """Return the settings as users write them: ``{"segment.bytes": "268435456", …}``."""
    values = {name: getattr(settings, field) for name, field in SETTINGS.items()}
    return {name: _shown(value) for name, value in values.items()}


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


_BOOLS: Final = {"true": True, "false": False}


def _parse_bool(name: str, value: Any) -> bool:
    found = _BOOLS.get(str(value).strip().lower())
    if found is None:
        raise InvalidConfig(f"{name} takes true | false, not {value!r}", setting=name)
    return found


def _parse(name: str, value: Any) -> Any:
    kind = _HINTS[SETTINGS[name]]
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        try:
            return kind(str(value).strip().lower())
        except ValueError:
            raise InvalidConfig(
                f"{name} takes {' | '.join(kind)}, not {value!r}", setting=name
            ) from None
    if kind is bool:
        return _parse_bool(name, value)
    if kind == tuple[str, ...]:  # names of columns, checked later, with the schema
        return split_names(str(value))
    allowed: AllowedRange = kind.__metadata__[0]
    try:
        number = int(str(value).strip())
    except ValueError:
        raise InvalidConfig(f"{name} takes a whole number, not {value!r}", setting=name) from None
    if (allowed.unlimited and number == -1) or allowed.low <= number <= allowed.high:
        return number
    also = " (or -1: no limit)" if allowed.unlimited else ""
    raise InvalidConfig(
        f"{name} takes {allowed.low} to {allowed.high}{also}, not {number}", setting=name
    )
