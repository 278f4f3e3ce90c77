"""The state of one Delta table, as its log gives it version by version.

**Offsets are part of the table.** The transaction of the application ``isolog:<topic id>:<p>`` has
the next offset of partition ``p``, and every commit with its records moves it. Another one has the
first offset, from which the table is complete. So an offset and its
records cannot differ, whoever compacts the table or writes its checkpoints.

**A table that others changed** may lack records below its offsets. Such changes are restores,
deletions from an append-only table, lost columns, and features that isolog does not write. They
are in ``stopped``: the worker writes no version until a person has decided. Compaction, new columns
and deletions that the table permits are no such changes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Final

import pyarrow as pa

from spark_stream.errors import LakeStopped
from spark_stream.lake.delta.actions import (
    Action,
    AddFile,
    CommitInfo,
    Metadata,
    Protocol,
    RemoveFile,
    Txn,
)
from spark_stream.lake.delta.schema import is_zoneless, schema_text

APPEND_ONLY: Final = "delta.appendOnly"
TOPIC_ID: Final = "isolog.topic.id"
CLUSTER: Final = "isolog.cluster"
LAKE: Final = "isolog.lake"
CLEANUP: Final = "delta.enableExpiredLogCleanup"
_FORGETS: Final = "delta.setTransactionRetentionDuration"
_ZONELESS: Final = "timestampNtz"
_READS: Final = {_ZONELESS}
_WRITES: Final = {_ZONELESS, "appendOnly"}
_FEATURE_VERSIONS: Final = (3, 7)
_PLAIN_VERSIONS: Final = (1, 2)
"""Version 2 of writers has append-only tables, and invariants, which isolog's tables lack."""


def application(topic_id: str, partition: int) -> str:
    """Return the application id whose version is the next offset of a partition."""
    return f"isolog:{topic_id}:{partition}"


def first_application(topic_id: str, partition: int) -> str:
    """Return the application id whose version is the first offset of a partition in the table."""
    return f"isolog:{topic_id}:{partition}:first"


@dataclass
class Table:
    """One table, at one version. ``at``: its location, for messages. Version -1 has no table."""

    at: str
    version: int = -1
    protocol: Protocol | None = None
    metadata: Metadata | None = None
    txns: dict[str, Txn] = field(default_factory=dict)
    files: dict[str, AddFile] = field(default_factory=dict)
    removed: dict[str, RemoveFile] = field(default_factory=dict)
    stopped: str | None = None
    """The change by others that stops the worker, or None."""
    moved_at: int = -1
    """The version that last changed an offset, or a later one with the same offsets."""
    checkpoint: int = 0
    """The last version that this state took from a checkpoint, or wrote as one."""
    checked: int = -1
    """The last version that was certainly not read from the place of an expired one."""
    confirmed: int = -1
    """The last version that is durable, with files that exist."""
    unconfirmed: set[str] = field(default_factory=set)
    """The files of the versions after it."""

    def apply(self, version: int, actions: Iterable[Action]) -> None:
        """Apply the next version."""
        if version != self.version + 1:
            raise ValueError(f"version {version} does not follow {self.version}")
        actions = list(actions)
        info = next((each.commit_info for each in actions if each.commit_info), CommitInfo())
        if info.isolog is None:
            self.stopped = self._reason_to_stop(version, info, actions) or self.stopped
        if any(each.txn is not None for each in actions):
            self.moved_at = version
        for each in actions:
            self._apply(each)
        self.version = version

    def restore(self, version: int, actions: Iterable[Action]) -> None:
        """Take the state from a checkpoint, which is the state of ``version``."""
        for each in actions:
            self._apply(each)
        self.version = self.moved_at = self.checkpoint = self.checked = version

    def become(self, other: Table) -> None:
        """Take the state of another instance of this table."""
        for each in fields(self):
            setattr(self, each.name, getattr(other, each.name))

    def _apply(self, action: Action) -> None:
        if action.protocol is not None:
            self.protocol = action.protocol
        if action.metadata is not None:
            self.metadata = action.metadata
        if action.txn is not None:
            self.txns[action.txn.app_id] = action.txn
        if action.remove is not None:
            self.files.pop(action.remove.path, None)
            self.unconfirmed.discard(action.remove.path)
            self.removed[action.remove.path] = action.remove
        if action.add is not None:
            self.files[action.add.path] = action.add
            self.unconfirmed.add(action.add.path)
            self.removed.pop(action.add.path, None)

    def _reason_to_stop(
        self, version: int, info: CommitInfo, actions: Sequence[Action]
    ) -> str | None:
        name = info.operation or "an operation"
        for each in actions:
            if each.remove is not None and each.remove.data_change:
                if info.operation == "RESTORE":
                    return f"version {version} restored an older version"
                if self._is_append_only:
                    return f"{name} in version {version} removed rows"
            if each.metadata is not None and self.metadata is not None:
                lost = sorted(_columns(self.metadata) - _columns(each.metadata))
                if lost:
                    return f"version {version} removed or renamed the column {lost[0]!r}"
                if each.metadata.id != self.metadata.id:
                    return f"version {version} replaced the table by another one"
        adds = any(each.add is not None and each.add.data_change for each in actions)
        removes = any(each.remove is not None for each in actions)
        # A deletion writes the rows that remain in a file again.
        if adds and not (removes and info.operation == "DELETE"):
            return f"{name} in version {version} {'replaced' if removes else 'added'} rows"
        return None

    @property
    def _is_append_only(self) -> bool:
        return self.metadata is not None and self.metadata.configuration.get(APPEND_ONLY) == "true"

    def offset(self, topic_id: str, partition: int) -> int | None:
        """Return the next offset of a partition, or None if the table has no commit of it."""
        found = self.txns.get(application(topic_id, partition))
        return None if found is None else found.version

    def first_offset(self, topic_id: str, partition: int) -> int | None:
        """Return the offset from which the table is complete, or None without a commit."""
        found = self.txns.get(first_application(topic_id, partition))
        return None if found is None else found.version

    def offsets(self, topic_id: str) -> dict[int, int]:
        """Return the next offset of each partition that the table has."""
        prefix = application(topic_id, 0)[:-1]
        return {
            int(number): each.version
            for name, each in self.txns.items()
            if name.startswith(prefix) and (number := name.removeprefix(prefix)).isdigit()
        }

    def number(self, application_id: str) -> int:
        """Return the number of an application, or -1 if the table has none."""
        found = self.txns.get(application_id)
        return -1 if found is None else found.version

    def check(self, cluster: str, topic_id: str) -> None:
        """Check that isolog may write this table, for this topic.

        Raises:
            LakeStopped: Others changed the table, it belongs to another topic or cluster, or it
                needs features that isolog does not write.
        """
        if self.stopped is not None:
            raise LakeStopped(
                f"the table {self.at} was changed by others: {self.stopped}",
                hint="The worker writes no more into this table. Create a lake at another location:"
                " it copies the records that the log still has.",
                table=self.at,
                version=self.version,
            )
        if self.metadata is None or self.protocol is None:
            raise LakeStopped(
                f"the log of the table {self.at} has no metadata",
                hint="Its first versions are missing. Restore the folder, or move it away.",
                table=self.at,
            )
        have = self.metadata.configuration
        for key, want, what in ((CLUSTER, cluster, "cluster"), (TOPIC_ID, topic_id, "topic")):
            found = have.get(key)
            if found != want:
                whose = f"the {what} {found}" if found else f"another program: it has no {key}"
                raise LakeStopped(
                    f"the table {self.at} belongs to {whose}",
                    hint=f"This {what} is {want}. Choose another location for the lake.",
                    table=self.at,
                )
        if _FORGETS in have:
            raise LakeStopped(
                f"the table {self.at} has the property {_FORGETS}, which removes offsets",
                hint=f"Unset it: ALTER TABLE … UNSET TBLPROPERTIES ('{_FORGETS}').",
                table=self.at,
            )
        self._check_protocol(self.protocol)

    def _check_protocol(self, protocol: Protocol) -> None:
        reads, writes = protocol.min_reader_version, protocol.min_writer_version
        of_readers = set(protocol.reader_features or ()) - _READS
        unknown = sorted(of_readers | (set(protocol.writer_features or ()) - _WRITES))
        has_features = writes == _FEATURE_VERSIONS[1]
        if writes > _PLAIN_VERSIONS[1] and not has_features:
            unknown.append(f"version {writes} of writers")
        if reads > _PLAIN_VERSIONS[0] and not (has_features and reads == _FEATURE_VERSIONS[0]):
            unknown.append(f"version {reads} of readers")
        if unknown:
            raise LakeStopped(
                f"the table {self.at} needs {', '.join(unknown)}, which isolog does not write",
                hint="Somebody enabled it. Drop the feature, or create the lake at another"
                " location.",
                table=self.at,
            )


def _columns(metadata: Metadata) -> set[str]:
    return {each["name"] for each in json.loads(metadata.schema_string)["fields"]}


def first_actions(
    name: str, schema: pa.Schema, table_id: str, configuration: dict[str, str], now_ms: int
) -> list[Action]:
    """Return the actions of version 0, besides its commit info. ``schema``: by ``delta.schema``."""
    protocol = Protocol(*_PLAIN_VERSIONS)
    if is_zoneless(schema):
        features = [_ZONELESS]
        protocol = Protocol(*_FEATURE_VERSIONS, features, [*features, "appendOnly"])
    metadata = Metadata(
        id=table_id,
        schema_string=schema_text(schema),
        name=name,
        configuration={APPEND_ONLY: "true", CLEANUP: "false", **configuration},
        created_time=now_ms,
    )
    return [Action(protocol=protocol), Action(metadata=metadata)]
