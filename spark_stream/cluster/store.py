"""The seam to the metadata store. Every change is one compare-and-set on one record's version.

A record is a key, a JSON object and a version. A version is a positive number that rises with every
change of the key's record; version 0 means "there is no such record".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Record:
    """A record as it was when it was read."""

    key: str
    value: Mapping[str, Any]
    version: int


class MetadataStore(Protocol):
    """What a store must do, from any thread; all calls may raise ``StorageFailure``.

    A key is text; keys are in the order of their code points, which is that of their UTF-8 bytes.
    """

    def get(self, key: str) -> Record | None:
        """The record, or None."""

    def list(self, prefix: str) -> Sequence[Record]:
        """All records whose keys start with ``prefix``, in the order of their keys."""

    def put(self, key: str, value: Mapping[str, Any], expected: int) -> int | None:
        """Writes if the record's version is ``expected`` (0: it must not exist).

        The new version; None if the version was another: nothing changed then.
        """

    def delete(self, key: str, expected: int) -> bool:
        """Deletes if the record's version is ``expected``; False if not: nothing changed then."""

    def close(self) -> None:
        """Lets go of the store."""
