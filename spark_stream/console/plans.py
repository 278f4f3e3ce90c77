"""The plans of a visitor: each is shown under a random token, and applied at most once.

Applying a plan takes it away. So a second click or a copied request has no effect.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from typing import Any, Final

from spark_stream.console.actions import Action, Plan
from spark_stream.console.client import ConsoleClient
from spark_stream.errors import InvalidRequest, IsologError

_PLANS_MAX: Final = 100


class PlanChanged(Exception):
    """The state has changed since the plan. ``plan``: a new plan, as it is shown."""

    def __init__(self, plan: dict[str, Any]) -> None:
        super().__init__("the state has changed since this plan")
        self.plan = plan


class PendingPlans:
    """The latest plans of a visitor that are not applied. All threads may use it."""

    def __init__(self, token: Callable[[], str] = secrets.token_urlsafe) -> None:
        self._token = token
        self._lock = threading.Lock()
        self._plans: dict[str, tuple[Action, Plan]] = {}

    def make(self, client: ConsoleClient, action: Action) -> dict[str, Any]:
        """Plan an action, and keep the plan. Return the plan for the page."""
        plan, token = action.plan(client), self._token()
        with self._lock:
            self._plans[token] = (action, plan)
            while len(self._plans) > _PLANS_MAX:
                del self._plans[next(iter(self._plans))]
        return plan.shown(token)

    def apply(self, client: ConsoleClient, token: str) -> str:
        """Carry out a plan once. Return the outcome as a sentence.

        Raises:
            InvalidRequest: there is no such plan, or it was applied.
            PlanChanged: the state has changed. Nothing is done.
            IsologError: the action fails. ``details`` has ``applied``: "no" or "unknown".
        """
        with self._lock:
            found = self._plans.pop(token, None)
        if found is None:
            raise InvalidRequest(
                "this plan is applied already, or unknown",
                hint="Look at the present state, and plan the action again.",
            )
        action, plan = found
        applied = "no"
        try:
            if action.plan(client).basis != plan.basis:
                raise PlanChanged(self.make(client, action))
            applied = "unknown"
            return action.apply(client, plan)
        except IsologError as error:
            error.details["applied"] = applied if error.retriable else "no"
            raise
