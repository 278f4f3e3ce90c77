"""The base class of what a ``with`` block closes at its end: the log and the consumer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from spark_stream.transport.lifetime import ProcessBound


class Closing(ProcessBound, ABC):
    """An object that a ``with`` block closes at its end, whatever happened inside."""

    @abstractmethod
    def close(self) -> None:
        """Release what this object holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
