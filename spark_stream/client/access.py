"""Users, tokens and rules, as an administrator changes them."""

from __future__ import annotations

from collections.abc import Iterable

from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.wire.access_messages import (
    Authenticated,
    CheckAccess,
    CreatedToken,
    CreateToken,
    Decision,
    GrantText,
    NamedToken,
    NamedUser,
    OpenSession,
    PutUser,
    RuleList,
    RuleText,
    TokenDescription,
    TokenList,
    UserList,
)
from spark_stream.wire.messages import Empty


class AccessClient:
    """The access of a connection's cluster; each call raises PermissionDenied if it is not allowed.

    A change takes effect on every broker within a second, on open streams as well.
    """

    def __init__(self, connection: ClusterConnection) -> None:
        self._connection = connection

    def add_user(self, name: str, password: str) -> None:
        """Make a user; InvalidRequest if there is one of this name."""
        asked = PutUser.of(name=name, password=password)
        self._connection.act("put-user", asked, Empty)

    def change_password(self, name: str, password: str) -> None:
        """Give a user another password; sessions of the former one end."""
        asked = PutUser.of(name=name, password=password, is_new=False)
        self._connection.act("put-user", asked, Empty)

    def remove_user(self, name: str) -> None:
        """Remove a user; InvalidRequest if there is none of this name."""
        self._connection.act("delete-user", NamedUser.of(name=name), Empty)

    def users(self) -> list[str]:
        """Return the names of all users."""
        return self._connection.act("list-users", Empty(), UserList).users

    def create_token(
        self,
        principal: str | None = None,
        lifetime_s: float | None = None,
        grants: Iterable[tuple[str, str]] | None = None,
        *,
        sliding: bool = False,
    ) -> CreatedToken:
        """Make a token, for oneself unless ``principal`` says for whom.

        ``grants``: what it may be used for, as (operation or ``all``, resource); by default
        whatever its principal may. ``lifetime_s``: by default it does not expire. ``sliding``: it
        expires when it was not used for that time.
        """
        asked = CreateToken.of(
            principal=principal,
            lifetime_ms=None if lifetime_s is None else int(lifetime_s * 1000),
            grants=None if grants is None else _texts(grants),
            sliding=sliding,
        )
        return self._connection.act("create-token", asked, CreatedToken)

    def open_session(self, grants: Iterable[tuple[str, str]], lifetime_s: float) -> str:
        """Return a token of which nothing is kept: for oneself, for these grants, for that time.

        It ends sooner if the password changes, or the token that it was made with is revoked.
        """
        asked = OpenSession(grants=_texts(grants), lifetime_ms=int(lifetime_s * 1000))
        answer = self._connection.act("open-session", asked, Authenticated)
        assert answer.session is not None
        return answer.session

    def tokens(self) -> list[TokenDescription]:
        """Return all tokens, or one's own."""
        return self._connection.act("list-tokens", Empty(), TokenList).tokens

    def revoke_token(self, token_id: str) -> None:
        """Revoke a token by its id."""
        self._connection.act("revoke-token", NamedToken.of(id=token_id), Empty)

    def add_rule(self, effect: str, principal: str, operation: str, resource: str) -> None:
        """Add a rule, unless it is there."""
        asked = RuleText.of(
            effect=effect, principal=principal, operation=operation, resource=resource
        )
        self._connection.act("add-rule", asked, Empty)

    def remove_rule(self, effect: str, principal: str, operation: str, resource: str) -> None:
        """Remove a rule; InvalidRequest if there is none like it."""
        asked = RuleText.of(
            effect=effect, principal=principal, operation=operation, resource=resource
        )
        self._connection.act("remove-rule", asked, Empty)

    def rules(self) -> list[RuleText]:
        """Return all rules, by principal and resource."""
        return self._connection.act("list-rules", Empty(), RuleList).rules

    def check(self, principal: str, operation: str, resource: str) -> Decision:
        """Return whether the principal may do this, and the rules that speak of it."""
        asked = CheckAccess.of(principal=principal, operation=operation, resource=resource)
        return self._connection.act("check-access", asked, Decision)


def _texts(grants: Iterable[tuple[str, str]]) -> list[GrantText]:
    return [GrantText(operation=operation, resource=resource) for operation, resource in grants]
