"""Scripts on a real metadata store; the files of a topic are only names in a set."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from spark_stream.cluster.store import MetadataStore
from spark_stream.cluster.topics import Topic
from spark_stream.errors import IsologError
from spark_stream.scripts.steps import (
    Delete,
    Get,
    ListRecords,
    MakeFiles,
    Put,
    RemoveFiles,
    Script,
    Serve,
    Step,
    StopServing,
)


@dataclass
class OnStore:
    """Drives scripts on a store.

    ``files`` has topic id and number of each partition whose files are there, ``served`` the topics
    that calls would find.
    """

    store: MetadataStore
    files: set[tuple[str, int]] = field(default_factory=set)
    served: dict[str, Topic] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)

    def run(self, script: Script[Any]) -> Any:
        """The script's result; raises what it raises."""
        return self.start(script).end()

    def start(self, script: Script[Any]) -> Driven:
        """The script before its first step."""
        return Driven(self, script)

    def stops_after(self, script: Script[Any], steps: int) -> bool:
        """Carries out so many steps, then stops for good; False if the script ended before."""
        driven = self.start(script)
        return all(driven.advance() for _ in range(steps))

    def carry_out(self, step: Step) -> Any:
        self.steps.append(step)
        match step:
            case Get() | ListRecords() | Put() | Delete():
                return answer_of(self.store, step)
            case MakeFiles(topic, first):
                self.files |= {(topic.id, number) for number in range(first, topic.partitions)}
            case RemoveFiles(topic, first):
                self.files -= {(topic.id, number) for number in range(first, topic.partitions)}
            case Serve(topic):
                self.served[topic.name] = topic
            case StopServing(topic):
                del self.served[topic.name]
            case _:
                raise AssertionError(step)
        return None


def answer_of(store: MetadataStore, step: Get | ListRecords | Put | Delete) -> Any:
    """What the store answers to a step."""
    match step:
        case Get(key):
            return store.get(key)
        case ListRecords(prefix):
            return store.list(prefix)
        case Put(key, value, expected):
            return store.put(key, value, expected)
        case Delete(key, expected):
            return store.delete(key, expected)


class Driven:
    """A script under way. If it is abandoned, it has stopped for good, as after a crash."""

    def __init__(self, world: OnStore, script: Script[Any]) -> None:
        self._world = world
        self._script = script
        self._answer: Any = None
        self._error: IsologError | None = None
        self.result: Any = None

    def end(self) -> Any:
        """All steps that are left; the script's result."""
        while self.advance():
            pass
        return self.result

    def advance(self) -> bool:
        """One step; False: the script has ended."""
        try:
            if self._error is None:
                step = self._script.send(self._answer)
            else:
                step = self._script.throw(self._error)
        except StopIteration as ended:
            self.result = ended.value
            return False
        self._answer, self._error = None, None
        try:
            self._answer = self._world.carry_out(step)
        except IsologError as error:
            self._error = error
        return True
