"""The permissions of a visitor for actions, so that the page can disable those without permission.

The brokers check the permissions again when an action is applied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, get_args

import msgspec
from msgspec import Struct

from spark_stream.access.rules import Need, Operation, Pattern, Resource, ResourceKind
from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.console.actions import Action, ResetConsumer
from spark_stream.errors import InvalidRequest, PermissionDenied
from spark_stream.wire.access_messages import GetPermissions

_INTENTS_MAX: Final = 500
_ACTIONS: Final = {str(each.__struct_config__.tag): each for each in get_args(Action)}
_HINT: Final = "An administrator can allow it."


class Intent(Struct, frozen=True):
    """An action of the page before its form is filled in. ``*``: on at least one resource."""

    action: str
    topic: str = "*"
    consumer: str = "*"
    transactional_id: str = "*"

    @property
    def needs(self) -> Sequence[Need]:
        """The permissions that the action needs."""
        found = _ACTIONS.get(self.action)
        if found is None:
            raise InvalidRequest(f"there is no action {self.action[:50]!r}")
        needs: Sequence[Need] = found.needs(self)
        return needs


_PARSER: Final[msgspec.json.Decoder[list[Intent]]] = msgspec.json.Decoder(list[Intent])


def parse_intents(body: bytes) -> list[Intent]:
    """Parse the body of a request for permissions.

    Raises:
        InvalidRequest: it is no list of actions, or there are too many.
    """
    try:
        found = _PARSER.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"the body is no list of actions: {error}") from None
    if len(found) > _INTENTS_MAX:
        raise InvalidRequest(f"there are more than {_INTENTS_MAX} actions")
    return found


def refusals(connection: ClusterConnection, needs: Sequence[Sequence[Need]]) -> list[str]:
    """Return the reason for which the user may not do each action, "" if it may.

    ``needs``: those of each action.
    """
    patterns = {
        on: str(Pattern(on.kind, "", True) if on.name == "*" else Pattern(*on))
        for each in needs
        for _, on in each
    }
    resources = sorted(set(patterns.values()))
    may = connection.call(GetPermissions(resources=resources)).operations
    return [
        next((_refusal(need) for need in each if need[0] not in may[patterns[need[1]]]), "")
        for each in needs
    ]


def _refusal(need: Need) -> str:
    operation, resource = need
    what = "administer" if operation is Operation.ADMIN else operation.value
    if resource.kind is ResourceKind.CLUSTER:
        return f"no permission to {what} the cluster"
    return f"no permission to {what} {resource if resource.name != '*' else f'any {resource.kind}'}"


def check(connection: ClusterConnection, action: Action) -> None:
    """Check that the user may do an action.

    Raises:
        PermissionDenied: it lacks a permission.
    """
    needs = [*type(action).needs(action)]
    if isinstance(action, ResetConsumer):
        topics = [Resource(ResourceKind.TOPIC, each) for each in action.topics or ()]
        needs += [(Operation.READ, each) for each in topics]
    [reason] = refusals(connection, [needs])
    if reason:
        raise PermissionDenied(reason, hint=_HINT)
