"""Problems of a cluster as text: the fault, its place, its age and the remedy. There is no I/O.

The input are the parts of the board. The problems that brokers report are those of `isolog cluster
status`. The others are derived from several parts and from their history.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import replace

from spark_stream.client.administration import disk_fault
from spark_stream.client.trends import LagTrend
from spark_stream.consistency.isolation import HOLDS_S, ReaderState
from spark_stream.lake_worker.status import WorkerState
from spark_stream.wire.cluster_messages import ProblemKind

_LOST_S: Final = 3600  # how long a lost member of a group is shown
_HOLDS_LONG_S: Final = 300.0
_SLOW_S: Final = 0.2
_SLOW_ALONE_S: Final = 1.0
_SLOW_TIMES: Final = 5.0
_SLOW_LEAST: Final = 5  # requests, the minimum for a judgement
_SILENT_PART: Final = 0.3
_FULL: Final = 0.9
_MOST: Final = 0.5  # of the growth of a disk
_FULL_SOON_S: Final = 1800.0
_FULL_LATER_S: Final = 3 * 3600.0
_NAMES_MAX: Final = 20
_NAMES_SHOWN: Final = 3
_SAME_MS: Final = 10_000
_RESTORED_MS: Final = 60_000  # some problems are found only from several answers


class Severity(StrEnum):
    """The severity of a problem. ``bad`` needs an operator now."""

    BAD = "bad"
    WARNING = "warning"


class ConsoleProblem(Struct, frozen=True):
    """A problem of the cluster.

    ``key`` identifies it while its text changes. ``hint``: the remedy. ``href``: the view with
    details. ``places``: some of its partitions, as ``topic/partition``. ``since_ms``: its start, or
    its first observation by the console. ``cause``: the key of the problem that explains it.
    """

    key: str
    severity: Severity
    message: str
    hint: str = ""
    href: str = ""
    places: tuple[str, ...] = ()
    since_ms: int | None = None
    cause: str = ""


def judge(parts: Mapping[str, Any], now_ms: int) -> list[ConsoleProblem]:
    """Return the problems of the parts of the board, each after its cause.

    Problems of readers have no effects on each other, and are sorted by severity. ``parts``: by
    name. Missing parts are not judged.
    """
    cluster = parts.get("cluster")
    consumers = (parts.get("consumers") or {}).get("consumers", [])
    found: list[ConsoleProblem] = []
    if cluster is not None:
        problems = list(of_cluster(cluster["problems"]))
        found += [each for each in problems if each.key.split()[0] in _CAUSES]
        found += of_answers(cluster["brokers"], elects=not has_store_problem(cluster))
        for broker in cluster["brokers"]:
            found += of_disk(broker)
        found += [each for each in problems if each.key.split()[0] not in _CAUSES]
    found += of_transactions(parts.get("transactions") or [], consumers, now_ms)
    is_shown = not has_store_problem(cluster)
    found += of_lakes(parts.get("lakes") or [])
    readers = of_consumers(consumers, now_ms, is_behind_shown=is_shown)
    found += sorted(readers, key=lambda each: list(Severity).index(each.severity))
    return below_causes(found, consumers)


def below_causes(
    found: Sequence[ConsoleProblem], consumers: Sequence[Mapping[str, Any]]
) -> list[ConsoleProblem]:
    """Return the problems with their causes, each below its cause.

    The cause of a problem of partitions is a full or failing disk with one of them, or the last of
    the dead and silent brokers. Without both, the store explains a missing leader. Partitions
    without a leader explain unfinished transactions and readers with such a partition.
    """
    roots = [each for each in found if each.key.split()[0] in (*_STORE, *_LOST_BROKERS)]
    disks = [each for each in found if each.key.startswith("refused ")]
    headless = [each for each in found if each.key.split()[0] == ProblemKind.NO_LEADER]
    read = {
        f"/consumers/{quote(each['name'], safe='')}": {
            f"{at.get('topic')}/{at.get('partition')}" for at in each.get("partitions", [])
        }
        for each in consumers
    }

    def cause_of(each: ConsoleProblem) -> str:
        kind = each.key.split()[0]
        if kind in _OF_PARTITIONS:
            near = [one.key for one in disks if {*one.places} & {*each.places}]
            stores = [one.key for one in roots if one.key.split()[0] in _STORE]
            brokers = [one.key for one in roots if one.key.split()[0] in _LOST_BROKERS]
            blamed = stores[-1:] if kind == ProblemKind.NO_LEADER else []
            return [*near, *brokers[-1:], *blamed, ""][0]
        if kind == "holds" and " is open," not in each.message:
            places = {*each.places}
        elif kind in ("stalled", "gone", "behind"):
            places = read.get(each.href, set())
        else:
            return ""
        return next((one.key for one in headless if {*one.places} & places), "")

    linked = [replace(each, cause=cause_of(each)) for each in found]
    effects: dict[str, list[ConsoleProblem]] = {}
    for each in linked:
        effects.setdefault(each.cause, []).append(each)

    def in_order(cause: str) -> Iterator[ConsoleProblem]:
        for each in effects.pop(cause, ()):
            yield each
            yield from in_order(each.key)

    return list(in_order(""))


# -- problems that brokers report ------------------------------------------------------------------

_HINTS: Final[Mapping[str, str]] = {
    ProblemKind.NO_LEADER: "Start a broker that has an in-sync replica of them.",
    ProblemKind.BELOW_MIN_ISR: "The page of each partition shows the missing replicas.",
    ProblemKind.UNDER_REPLICATED: (
        "The page of each partition shows the missing replica and the reason."
    ),
    ProblemKind.DEAD_BROKER: (
        "Start it again. If its process hangs, stop it first, by kill -9 if necessary. If the"
        " machine is lost: isolog cluster decommission {name}"
    ),
}


_STORE: Final = (ProblemKind.METADATA_LOST, ProblemKind.METADATA_AWAY)
"""Problems of the metadata store, during which no leader is elected."""

_CAUSES: Final = (
    *_STORE,
    ProblemKind.DEAD_BROKER,
    ProblemKind.CANNOT_LEAVE,
)
"""Problems of the store and of brokers, which cause problems of partitions."""

_LOST_BROKERS: Final = (ProblemKind.DEAD_BROKER, "no_answer")

_OF_PARTITIONS: Final = (
    ProblemKind.NO_LEADER,
    ProblemKind.BELOW_MIN_ISR,
    ProblemKind.UNDER_REPLICATED,
)


def has_store_problem(cluster: Mapping[str, Any] | None) -> bool:
    """Return whether the cluster reports a problem of the metadata store."""
    return cluster is not None and any(each["kind"] in _STORE for each in cluster["problems"])


def of_cluster(problems: Sequence[Mapping[str, Any]]) -> Iterator[ConsoleProblem]:
    """Return the problems that the brokers report."""
    elects = not any(each["kind"] in _STORE for each in problems)
    for each in problems:
        if each["kind"] == ProblemKind.REFUSED_WRITES:
            continue  # of_disk yields it with its partitions and the cause of the growth
        names = each["names"]
        hint = _HINTS.get(each["kind"], "")
        if each["kind"] == ProblemKind.NO_LEADER and not elects:
            hint = "A leader is elected when the metadata store accepts changes again."
        yield ConsoleProblem(
            key=f"{each['kind']} {','.join(names) if each['kind'] == 'dead_broker' else ''}",
            severity=Severity.BAD,
            message=each["message"],
            hint=hint.format(name=names[0] if names else "ID"),
            places=tuple(name for name in names if "/" in name),
        )


# -- silent and slow brokers -----------------------------------------------------------------------


def is_silent(broker: Mapping[str, Any]) -> bool:
    """Return whether a live broker does not answer requests."""
    answers = broker["answers"]
    often = answers["unanswered"] > max(1, _SILENT_PART * answers["asked"])
    return broker["alive"] and (broker["status"] is None or often)


def is_slow(broker: Mapping[str, Any], brokers: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a broker has recently been far slower than the others."""
    own, others = _median_s(broker), [_median_s(each) for each in brokers if each is not broker]
    if own is None or broker["answers"]["asked"] < _SLOW_LEAST:
        return False
    known = [each for each in others if each is not None]
    least = max(_SLOW_S, _SLOW_TIMES * statistics.median(known)) if known else _SLOW_ALONE_S
    return own >= least


def _median_s(broker: Mapping[str, Any]) -> float | None:
    found: float | None = broker["answers"]["median_s"]
    return found


def of_answers(
    brokers: Sequence[Mapping[str, Any]], *, elects: bool = True
) -> Iterator[ConsoleProblem]:
    """Return the live brokers that do not answer, or that are far slower than the others.

    ``elects``: the cluster can elect other leaders, so stopping such a broker helps.
    """
    stop = ". Stop it to elect other leaders." if elects else "."
    for each in brokers:
        name, answers = each["id"], each["answers"]
        if is_silent(each):
            text = f"broker {name} is alive, and does not answer"
            if each["status"] is not None:
                text += f" {answers['unanswered']} of {answers['asked']} requests in time"
            yield ConsoleProblem(
                f"no_answer {name}",
                Severity.BAD,
                text,
                "Its partitions are slow or unavailable. Check the load of its machine, and its log"
                f" file{stop}",
            )
        elif is_slow(each, brokers):
            yield ConsoleProblem(
                f"slow {name}",
                Severity.BAD,
                f"broker {name} is slow: its response time is {_median_s(each):.1f} s, far longer"
                " than that of the others",
                "Writes, commits and queries wait for it. Check the processors and the disk of its"
                f" machine{stop}",
            )


# -- disks -----------------------------------------------------------------------------------------


def of_disk(broker: Mapping[str, Any]) -> Iterator[ConsoleProblem]:
    """Return the problems of a broker's disk, and of the logs on it."""
    status, name = broker["status"], broker["id"]
    if status is None:
        return
    yield from _refusals(broker)
    for place, offset in status["damaged"].items():
        yield ConsoleProblem(
            f"damaged {place} {name}",
            Severity.BAD,
            f"partition {place} is damaged at broker {name}, from offset {offset}",
            "It is repaired from its leader if another replica is in sync. Check the disk, and run:"
            " isolog log verify",
            _partition(place),
            (place,),
        )
    if "DISK_FULL" in status["refused"].values() or not status["disk_total"]:
        return
    used, full_in = 1 - status["disk_free"] / status["disk_total"], broker["full_in_s"]
    is_soon = full_in is not None and full_in < _FULL_SOON_S
    if is_soon or (full_in is not None and full_in < _FULL_LATER_S):
        text = f"the disk of broker {name} will be full in {about(full_in)} at its present growth"
    elif used >= _FULL:
        text = f"the disk of broker {name} is {used:.0%} full"
    else:
        return
    severity = Severity.BAD if is_soon or used >= _FULL else Severity.WARNING
    yield ConsoleProblem(f"disk {name}", severity, text + _grows(broker), _room(broker), "/#disks")


def _room(broker: Mapping[str, Any]) -> str:
    if _fillers(broker) == []:
        return "Stop the program that fills it, remove its files, or use a larger disk."
    return (
        "Free space: use a larger disk, delete topics, or set retention.bytes and retention.ms,"
        " which remove whole segments, except the active one (segment.bytes)."
    )


def _refusals(broker: Mapping[str, Any]) -> Iterator[ConsoleProblem]:
    refused, name = broker["status"]["refused"], broker["id"]
    for code in sorted(set(refused.values())):
        places = sorted(place for place, each in refused.items() if each == code)
        led = [each for each in places if each in broker["led"]]
        text = disk_fault(name, code, len(places))
        if led:
            text += f", and it leads {_joined(led)}"
        hint = (
            f"{_room(broker)} Writes then continue without a restart."
            if code == "DISK_FULL"
            else "The log file of the broker shows the error of the system. Replace the disk."
        )
        shown = led + [each for each in places if each not in led]
        href = _partition(places[0]) if len(places) == 1 else ""
        yield ConsoleProblem(
            f"refused {code} {name}",
            Severity.BAD,
            text + _grows(broker),
            hint,
            href,
            tuple(shown[:_NAMES_MAX]),
        )


def _grows(broker: Mapping[str, Any]) -> str:
    """Return the topics that cause most of the growth, as text."""
    names = _fillers(broker)
    if names is None:
        return ""
    if not names:
        return ", and other programs than isolog fill it"
    return f", and {_joined(names)} {'grows' if len(names) == 1 else 'grow'} fastest on it"


def _fillers(broker: Mapping[str, Any]) -> list[str] | None:
    """Return the topics that cause most of the growth. Empty: other programs, None: no growth."""
    fills: float = broker["fills_bytes_per_s"]
    if fills <= 0:
        return None
    names: list[str] = []
    explained = 0.0
    for each in broker["on_disk"]:
        names.append(each["topic"])
        explained += each["bytes_per_s"]
        if explained >= _MOST * fills:
            return names
    return []


# -- transactions and readers ----------------------------------------------------------------------


def of_transactions(
    transactions: Sequence[Mapping[str, Any]],
    consumers: Sequence[Mapping[str, Any]],
    now_ms: int,
) -> Iterator[ConsoleProblem]:
    """Return the transactions that hold back records for longer than a micro-batch takes."""
    for each in transactions:
        age_s = (now_ms - each["began_ms"]) / 1000
        if not each["held_back"] or age_s < HOLDS_S:
            continue
        name = each["transactional_id"]
        places = [
            f"{at['topic']}/{at['partition']}" for at in each["places"] if at["held_back"] > 0
        ]
        waiting = sorted(
            reader["name"]
            for reader in consumers
            if reader["state"] == ReaderState.WAITING_AT_LSO
            and any(at["number"] == each["number"] for at in reader["waits_for"])
        )
        held = counted(each["held_back"], "record")
        text = f"transaction {name} is {each['state']}, and holds back {held} of {_joined(places)}"
        if waiting:
            text += f" ({_joined(waiting)} {'waits' if len(waiting) == 1 else 'wait'} for it)"
        hint = (
            f"If its writer hangs or has ended: isolog transactions abort {name}"
            if each["state"] == "open"
            else "Brokers finish it when all of its partitions have a leader."
        )
        yield ConsoleProblem(
            f"holds {name} {each['number']}",
            Severity.BAD if age_s >= _HOLDS_LONG_S or waiting else Severity.WARNING,
            text,
            hint,
            "/transactions",
            tuple(places[:_NAMES_MAX]),
            each["began_ms"],
        )


def of_lakes(lakes: Sequence[Mapping[str, Any]]) -> Iterator[ConsoleProblem]:
    """Return the lakes whose worker stopped with a question, or has not reported beside a lag."""
    for each in lakes:
        name, href = each["name"], f"/lakes/{quote(each['name'], safe='')}"
        if each["worker"] == WorkerState.STOPPED:
            text = f"the worker of lake {name} stopped: {each['stopped']}"
            key = f"lake_stopped {name}"
            yield ConsoleProblem(key, Severity.BAD, text, each["stopped_hint"], href)
            continue
        lag = sum(at["lag"] or 0 for topic in each["topics"] for at in topic["partitions"])
        if each["worker"] == WorkerState.ABSENT and lag:
            text = f"lake {name} has no worker, and its tables lack {counted(lag, 'record')}"
            hint = f"Start its worker: isolog lake run {name}"
            yield ConsoleProblem(f"lake_absent {name}", Severity.WARNING, text, hint, href)


def of_consumers(
    consumers: Sequence[Mapping[str, Any]], now_ms: int, *, is_behind_shown: bool = True
) -> Iterator[ConsoleProblem]:
    """Return readers that are stalled, gone, falling behind, or wait for a hidden transaction.

    Also return the groups that lost a member in the last hour, unless the group ended by that.
    ``is_behind_shown``: False while the metadata store has a problem, which also slows readers.
    """
    for each in consumers:
        kind = {"query": "query", "client": "consumer"}[each["kind"]]
        what = f"{'group' if each.get('group') else kind} {each['name']}"
        lag = "behind" if each["lag"] is None else f"{counted(each['lag'], 'record')} behind"
        href = f"/consumers/{quote(each['name'], safe='')}"
        if each["state"] == ReaderState.STALLED:
            hint = (
                "Its micro-batch takes longer than all earlier ones. See Spark's UI and the log of"
                " the driver."
                if each["kind"] == "query"
                else "Its program has not requested records for two minutes. Check what it does."
            )
            text = f"{what} is stalled, {lag}"
            yield ConsoleProblem(f"stalled {what}", Severity.BAD, text, hint, href)
        elif each["state"] == ReaderState.GONE:
            hint = (
                "Check its process and its log, and start it again. If it is no longer used:"
                f" isolog consumers delete {each['name']}"
            )
            text = f"{what} ended without being closed, or hangs, {lag}"
            yield ConsoleProblem(f"gone {what}", Severity.BAD, text, hint, href)
        elif (
            is_behind_shown
            and each["state"] == ReaderState.CATCHING_UP
            and each["trend"] == LagTrend.GROWS
        ):
            text = f"{what} is falling behind: writes are faster than its reads, and it is {lag}"
            hint = "Increase its resources or its batches."
            yield ConsoleProblem(f"behind {what}", Severity.WARNING, text, hint, href)
        elif each["state"] == ReaderState.WAITING_AT_LSO and any(
            at.get("unlisted_since_ms") is not None
            and now_ms - at["unlisted_since_ms"] >= 1000 * HOLDS_S
            for at in each["waits_for"]
        ):
            text = f"{what} waits for a transaction that you have no permission to see"
            hint = "Ask an administrator to check it: isolog transactions list"
            yield ConsoleProblem(f"waits {what}", Severity.WARNING, text, hint, href)
        lost_ms = each.get("lost_ms")
        if lost_ms is None or each["state"] == ReaderState.GONE:
            continue
        age_s = (now_ms - lost_ms) / 1000
        if age_s < _LOST_S:
            text = f"{what} lost member {each['lost_member']} {about(age_s)} ago"
            hint = (
                "Its session expired, because it crashed, hung or lost its connection. "
                + (
                    "The current members read its partitions."
                    if (each.get("group") or {}).get("members")
                    else "The group has no members now. Start one to continue."
                )
                + " Check its process and its log."
            )
            yield ConsoleProblem(f"lost {what}", Severity.WARNING, text, hint, href, (), lost_ms)


# -- first observations ----------------------------------------------------------------------------


class FirstSeen:
    """The times at which problems were first observed."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int]] = {}  # by key: first and last

    def restore(self, starts: Mapping[str, int], now_ms: int) -> None:
        """Continue with problems that an earlier process found."""
        until_ms = now_ms + _RESTORED_MS
        self._seen = {key: (since_ms, until_ms) for key, since_ms in starts.items()}

    def stamp(self, found: Sequence[ConsoleProblem], now_ms: int) -> list[ConsoleProblem]:
        """Return the problems with ``since_ms``. A problem that recurs in 10 s keeps its time."""
        for each in found:
            first, _ = self._seen.get(each.key, (now_ms, now_ms))
            self._seen[each.key] = (first, now_ms)
        self._seen = {key: seen for key, seen in self._seen.items() if now_ms - seen[1] <= _SAME_MS}
        return [
            each if each.since_ms is not None else replace(each, since_ms=self._seen[each.key][0])
            for each in found
        ]


# -- texts -----------------------------------------------------------------------------------------


def counted(count: int, what: str) -> str:
    """Return a number with its noun: "1 record", "2,000 records"."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _joined(names: Sequence[str]) -> str:
    if len(names) <= _NAMES_SHOWN:
        return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
    return f"{', '.join(names[:_NAMES_SHOWN])} and {len(names) - _NAMES_SHOWN} more"


def about(seconds: float) -> str:
    """Return a rough duration: "about 3 min"."""
    if seconds < 60:
        return "less than a minute"
    if seconds < 5400:
        return f"about {seconds / 60:.0f} min"
    return f"about {seconds / 3600:.0f} h"


def _partition(place: str) -> str:
    topic, _, number = place.rpartition("/")
    return f"/topics/{quote(topic, safe='')}/{number}"
