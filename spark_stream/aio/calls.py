"""Calls that wait, made on threads; the base of what stands for an object of the client."""

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
    """What is closed by hand, or at the end of a ``with`` block."""

    def close(self) -> None:
        """Release what this object holds."""


class Asynchronous(ProcessBound, Generic[S]):
    """Stands for an object of the client, ``sync``. Close it, or use it with ``async with``."""

    def __init__(self, sync: S) -> None:
        self.sync = sync
        self._lifetime = present_lifetime()

    async def __aenter__(self) -> Self:
        return self

    async def close(self) -> None:
        """Do what the client's ``close`` does."""
        await self._end_unless_over(self.sync.close)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._end_unless_over(partial(self.sync.__exit__, kind, error, trace))

    async def _end_unless_over(self, close: Callable[[], object]) -> None:
        """Close, except in a forked child: it has no effect there, and asyncio has no loop."""
        if not self._lifetime.is_over:
            await self._end(close)

    async def _end(self, close: Callable[[], object]) -> None:
        """Call what closes the client's object."""
        await asyncio.to_thread(close)

    async def _call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call on a thread, unless the lifetime has ended."""
        self._lifetime.check()
        return await asyncio.to_thread(function, *args, **kwargs)


def on_a_thread(
    method: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[Asynchronous[S], P], Coroutine[Any, Any, T]]:
    """Return the coroutine method that calls this method on a thread."""

    @wraps(method)
    async def call(of: Asynchronous[S], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await of._call(method, of.sync, *args, **kwargs)

    return call


A = TypeVar("A", bound=Asynchronous[Any])


class Opener(ProcessBound, Generic[A]):
    """What opens an object: ``await`` it, or use it with ``async with``, which closes it too."""

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
    """A thread for the calls of one object, one after another; it starts with the first.

    A call whose caller is cancelled is not made, unless it has begun: then it goes on, and later
    calls wait for it.
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
        """Whether no call waits or is under way."""
        return not self._calls

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what a function returns, or raise what it raises."""
        self._lifetime.check()
        return await asyncio.wrap_future(self.start(function, *args, **kwargs))

    def start(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have a function called, behind the calls before."""
        call = self._executor.submit(function, *args, **kwargs)
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return call

    def rest(self) -> None:
        """Let the thread end after the calls so far; another call starts another one."""
        self._executor.shutdown(wait=False)
        self._executor = ThreadPoolExecutor(1, self._name)
