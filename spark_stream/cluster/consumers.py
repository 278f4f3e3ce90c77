"""Named consumers as records of the metadata store: where each goes on, and who owns its name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Any, Final

from spark_stream.cluster.store import MetadataStore
from spark_stream.consistency.transactions import PositionOf
from spark_stream.errors import ConsumerFenced

CONSUMERS: Final = "consumers/"


class ConsumerRecords:
    """Where named consumers go on."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def get(self, consumer: str) -> list[PositionOf]:
        """The positions, by topic and partition; empty if none was ever stored."""
        record = self._store.get(CONSUMERS + consumer)
        return [] if record is None else decode_positions(record.value["positions"])

    def take(self, consumer: str, instance: str) -> None:
        """The instance owns the name from now on; whoever owned it is fenced."""
        self._change(consumer, lambda value: {**value, "instance": instance})

    def check(self, owners: Mapping[str, str]) -> None:
        """ConsumerFenced if a name is owned by another instance than this one."""
        for name, instance in owners.items():
            record = self._store.get(CONSUMERS + name)
            _check_owner(name, {} if record is None else record.value, instance)

    def store(
        self,
        positions: list[PositionOf],
        still: Callable[[], bool] = lambda: True,
        owners: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Puts the positions in the place of the earlier ones, unless ``still`` turns false.

        ``still`` is asked after a record was read and before it is written, so that whoever is late
        (another has finished the transaction, and a later one has moved on) changes nothing.

        Raises:
            ConsumerFenced: a name has another owner than ``owners`` says.
        """
        for name in sorted({each.consumer for each in positions}):
            mine = [each for each in positions if each.consumer == name]

            def moved(
                value: Mapping[str, Any],
                name: str = name,
                mine: list[PositionOf] = mine,
            ) -> Mapping[str, Any] | None:
                if not still():
                    return None
                if name in owners:
                    _check_owner(name, value, owners[name])
                known = decode_positions(value["positions"])
                merged = {(each.topic, each.partition): each for each in (*known, *mine)}
                return {
                    **value,
                    "positions": encode_positions(merged[place] for place in sorted(merged)),
                }

            if not self._change(name, moved):
                return

    def _change(
        self, name: str, rule: Callable[[Mapping[str, Any]], Mapping[str, Any] | None]
    ) -> bool:
        """One compare-and-set of what the rule makes of the record; False if it makes nothing."""
        while True:
            record = self._store.get(CONSUMERS + name)
            value = rule({"positions": []} if record is None else record.value)
            if value is None:
                return False
            version = 0 if record is None else record.version
            if self._store.put(CONSUMERS + name, value, version) is not None:
                return True


def _check_owner(name: str, value: Mapping[str, Any], instance: str) -> None:
    if value.get("instance") != instance:
        raise ConsumerFenced(f"another consumer has taken over the name {name!r}", consumer=name)


def encode_positions(positions: Iterable[PositionOf]) -> list[dict[str, Any]]:
    """What the store holds of positions."""
    return [asdict(each) for each in positions]


def decode_positions(values: Iterable[Mapping[str, Any]]) -> list[PositionOf]:
    """The positions that a record's value holds."""
    return [PositionOf(**each) for each in values]
