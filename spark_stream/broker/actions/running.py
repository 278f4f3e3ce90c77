"""Runs a call for a caller that may make it, and writes it to the audit log.

The handlers are in the neighbouring modules, where :func:`handles` registers one for each call.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from spark_stream.broker.access.audit import ADMINISTRATIVE, CREDENTIALS, DONE, named_in
from spark_stream.broker.actions import (
    access,
    cluster,
    consumers,
    lakes,
    mapped,
    topics,
    transactions,
)
from spark_stream.broker.actions.context import HANDLERS, BrokerContext
from spark_stream.errors import InvalidRequest, IsologError, PermissionDenied
from spark_stream.wire.access_messages import CreatedToken
from spark_stream.wire.calls import CALLS
from spark_stream.wire.messages import Message, to_bytes

MODULES: Final = (access, cluster, consumers, lakes, mapped, topics, transactions)
"""The modules with the handlers."""


def run_call(context: BrokerContext, name: str, body: bytes) -> bytes:
    """Run a call for the context's caller. Return the answer as it is sent.

    Raises:
        InvalidRequest: No call has this name, or its body is wrong.
        Unauthenticated, PermissionDenied, UnknownTopic: As ``Authorizer.check``.
        Others: As the call's handler.
    """
    call = CALLS.get(name)
    if call is None:
        raise InvalidRequest(f"there is no action {name!r}; there are {', '.join(CALLS)}")
    asked = call.from_bytes(body)
    with context.host.counts.actions[name].time(), context.without_guesses():
        needs = call.needs(asked)
        context.authorizer.check(context.caller, needs)
        is_noted = any(operation in ADMINISTRATIVE for operation, _ in needs) or name in CREDENTIALS
        with _written_down(context, name, asked, always=is_noted) as about:
            answer = HANDLERS[call](context, asked)
            if isinstance(answer, CreatedToken):
                about.append(named_in(answer))
        return to_bytes(answer)


@contextmanager
def _written_down(
    context: BrokerContext, name: str, asked: Message, *, always: bool
) -> Iterator[list[str]]:
    """Write the outcome of a call to the audit log. Yield the texts that name its resources.

    Without ``always`` only a refusal is written.
    """
    outcome, caller, about = "failed", context.caller, [named_in(asked)]
    try:
        yield about
        outcome = DONE
    except IsologError as error:
        outcome = error.code
        raise
    finally:
        if always or outcome == PermissionDenied.code:
            on = " ".join(filter(None, about))
            context.authorizer.audit.note(caller, caller.address, name, on, outcome)
