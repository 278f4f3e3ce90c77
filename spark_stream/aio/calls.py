"""Calls that wait, on threads, and the base class of wrappers of the client's objects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from spark_stream.transport.lifetime import ProcessBound, in_child_while_used, present_lifetime

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound="Closable")


class Closable(AbstractContextManager[Any], Protocol):
    """An object that is closed by ``close`` or at the end of a ``with`` block."""

    def close(self) -> None:
        """Close the object."""


class Asynchronous(ProcessBound, Generic[S]):
    """An asyncio wrapper of a client's object, ``sync``. Close it, or use ``async with``."""

    def __init__(self, sync: S) -> None:
        self.sync = sync
        self._lifetime = present_lifetime()

    async def __aenter__(self) -> Self:
        return self

    async def close(self) -> None:
        """Close the client's object, as its ``close`` does."""
        await self._end_unless_over(self.sync.close)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._end_unless_over(partial(self.sync.__exit__, kind, error, trace))

    async def _end_unless_over(self, close: Callable[[], object]) -> None:
        """Close, except in a forked child, where it has no effect and asyncio has no loop."""
        if not self._lifetime.is_over:
            await self._end(close)

    async def _end(self, close: Callable[[], object]) -> None:
        """Call the function that closes the client's object."""
        await asyncio.to_thread(close)

    async def _call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call on a thread. Raise the lifetime's error if it has ended."""
        self._lifetime.check()
        return await asyncio.to_thread(function, *args, **kwargs)


def on_a_thread(
    method: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[Asynchronous[S], P], Coroutine[Any, Any, T]]:
    """Return a coroutine method that calls this method on a thread."""

    @wraps(method)
    async def call(of: Asynchronous[S], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await of._call(method, of.sync, *args, **kwargs)

    return call


A = TypeVar("A", bound=Asynchronous[Any])


class Opener(ProcessBound, Generic[A]):
    """An object that is being opened. Await it, or use ``async with``, which closes it too."""

    def __init__(self, opened: Callable[[], Coroutine[Any, Any, A]]) -> None:
        self._opened = opened

    def __await__(self) -> Generator[Any, None, A]:
        return self._opened().__await__()

    async def __aenter__(self) -> A:
        self._object = await self
        return self._object

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._object.__aexit__(kind, error, trace)


class Worker:
    """A thread for the calls of one object, one after another. It starts with the first call.

    A queued call whose caller is cancelled is dropped. A running call continues, and later calls
    wait for it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lifetime = present_lifetime()
        self._begin()
        in_child_while_used(self._begin)  # a forked child does not have its parent's thread

    def _begin(self) -> None:
        self._executor = ThreadPoolExecutor(1, self._name)
        self._calls = set[Future[Any]]()

    @property
    def is_idle(self) -> bool:
        """Whether no call is queued or running."""
        return not self._calls

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function, and return its result or raise its error."""
        self._lifetime.check()
        return await asyncio.wrap_future(self.start(function, *args, **kwargs))

    def start(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queue a call of a function after the earlier calls."""
        call = self._executor.submit(function, *args, **kwargs)
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return call

    def rest(self) -> None:
        """End the thread after the queued calls. A later call starts another one."""
        self._executor.shutdown(wait=False)
        self._executor = ThreadPoolExecutor(1, self._name)
