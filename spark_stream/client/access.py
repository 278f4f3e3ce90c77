"""Users, tokens, rules and quotas, as an administrator changes them."""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from spark_stream.access.rules import Quota
from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.wire.access_messages import (
    AddRule,
    CheckAccess,
    CreatedToken,
    CreateToken,
    Decision,
    DeleteUser,
    GrantText,
    ListQuotas,
    ListRules,
    ListTokens,
    ListUsers,
    OpenSession,
    PutUser,
    RemoveQuota,
    RemoveRule,
    RevokeToken,
    RuleText,
    SetQuota,
    TokenDescription,
)


class AccessClient:
    """Users, tokens and rules of a cluster; a call that is not allowed raises PermissionDenied.

    A change takes effect on every broker within a second, on open streams as well.
    """

    def __init__(self, connection: ClusterConnection) -> None:
        self._connection = connection

    def add_user(self, name: str, password: str) -> None:
        """Add a user, or raise InvalidRequest if the name is taken."""
        self._put_user(name, password, is_new=True)

    def change_password(self, name: str, password: str) -> None:
        """Change a user's password, and end the sessions of the old password."""
        self._put_user(name, password, is_new=False)

    def _put_user(self, name: str, password: str, *, is_new: bool) -> None:
        request_id = secrets.token_hex(8)
        self._connection.call(
            PutUser.of(name=name, password=password, is_new=is_new, request_id=request_id)
        )

    def remove_user(self, name: str) -> None:
        """Remove a user, or raise InvalidRequest if there is none of this name."""
        self._connection.call(DeleteUser.of(name=name))

    def users(self) -> list[str]:
        """Return the names of all users."""
        return self._connection.call(ListUsers()).users

    def create_token(
        self,
        principal: str | None = None,
        lifetime_s: float | None = None,
        grants: Iterable[tuple[str, str]] | None = None,
        *,
        sliding: bool = False,
    ) -> CreatedToken:
        """Make a token for ``principal``, by default for the caller.

        ``grants``: what the token may be used for, as (operation or ``all``, resource); by default
        all that its principal may do. ``lifetime_s``: by default the token does not expire.
        ``sliding``: it expires once it was not used for that time.
        """
        return self._connection.call(
            CreateToken.of(
                principal=principal,
                lifetime_ms=None if lifetime_s is None else int(lifetime_s * 1000),
                grants=None if grants is None else _texts(grants),
                sliding=sliding,
            )
        )

    def open_session(self, grants: Iterable[tuple[str, str]], lifetime_s: float) -> str:
        """Return a token for the caller that no broker stores, with these grants and this lifetime.

        It ends sooner if the password changes, or the token that it was made with is revoked.
        """
        asked = OpenSession(grants=_texts(grants), lifetime_ms=int(lifetime_s * 1000))
        answer = self._connection.call(asked)
        assert answer.session is not None
        return answer.session

    def tokens(self) -> list[TokenDescription]:
        """Return all tokens, or only the caller's own if it may not see others."""
        return self._connection.call(ListTokens()).tokens

    def revoke_token(self, token_id: str) -> None:
        """Revoke a token by its id."""
        self._connection.call(RevokeToken.of(id=token_id))

    def add_rule(self, effect: str, principal: str, operation: str, resource: str) -> None:
        """Add a rule, unless it already exists."""
        asked = AddRule.of(
            effect=effect, principal=principal, operation=operation, resource=resource
        )
        self._connection.call(asked)

    def remove_rule(self, effect: str, principal: str, operation: str, resource: str) -> None:
        """Remove a rule, or raise InvalidRequest if it does not exist."""
        asked = RemoveRule.of(
            effect=effect, principal=principal, operation=operation, resource=resource
        )
        self._connection.call(asked)

    def rules(self) -> list[RuleText]:
        """Return all rules, by principal and resource."""
        return self._connection.call(ListRules()).rules

    def set_quota(
        self,
        principal: str,
        write_bytes_per_s: int | None = None,
        read_bytes_per_s: int | None = None,
        connections: int | None = None,
    ) -> None:
        """Give a principal a quota at each broker, in the place of the one that it has.

        What is None has no limit. ``*`` is the default of all that have no quota of their own.
        """
        quota = {
            "write_bytes_per_s": write_bytes_per_s,
            "read_bytes_per_s": read_bytes_per_s,
            "connections": connections,
        }
        self._connection.call(SetQuota.of(principal=principal, quota=quota))

    def remove_quota(self, principal: str) -> None:
        """Remove a principal's quota; InvalidRequest if it has none of its own."""
        self._connection.call(RemoveQuota.of(principal=principal))

    def quotas(self) -> dict[str, Quota]:
        """Return all quotas, by principal."""
        return self._connection.call(ListQuotas()).quotas

    def check(self, principal: str, operation: str, resource: str) -> Decision:
        """Return whether the principal may do this, and the rules that apply."""
        asked = CheckAccess.of(principal=principal, operation=operation, resource=resource)
        return self._connection.call(asked)


def _texts(grants: Iterable[tuple[str, str]]) -> list[GrantText]:
    return [GrantText(operation=operation, resource=resource) for operation, resource in grants]
