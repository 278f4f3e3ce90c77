"""The calls about users, tokens, rules and quotas, and the authentication of callers."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from msgspec import Meta

from spark_stream.access.rules import Operation, Quota, anybody, described, on_cluster
from spark_stream.wire.messages import Call, Description, Message

ADMIN = Operation.ADMIN

Principal = Annotated[str, Meta(min_length=1, max_length=255)]
GRANTS_MAX: Final = 1_000
LIFETIME_DAYS_MAX: Final = 36_500
"""The longest lifetime of a token that expires."""
ResourceText = Annotated[str, Meta(max_length=300)]
Secret = Annotated[str, Meta(max_length=4096)]


class Authenticate(Message):
    """The credential of a caller: a user and a password, or a token. It is never logged."""

    user: Principal | None = None
    password: Secret | None = None
    token: Secret | None = None

    def __repr__(self) -> str:
        return f"Authenticate(user={self.user!r}, …)"


class Authenticated(Message):
    """The caller. ``session``: a token to send instead of the password, until it expires.

    ``expires_ms``: on the broker's wall clock, since 1970, or None without an end. ``left_ms``: the
    time until then, for clients whose clock differs.
    """

    principal: str
    session: str | None = None
    expires_ms: int | None = None
    left_ms: int | None = None

    def __repr__(self) -> str:
        return f"Authenticated(principal={self.principal!r}, …)"


class GrantText(Message):
    """A permission of a token: an operation (or ``all``) on a resource, as texts."""

    operation: Annotated[str, Meta(max_length=32)]
    resource: ResourceText


class PutUser(Call[None], name="put-user", needs=on_cluster(ADMIN)):
    """Add a user, or change a user's password. ``is_new``: the user must not exist yet.

    ``request_id``: a text that no other request has. A request whose id is on record was carried
    out before, and changes nothing.
    """

    HINTS: ClassVar[frozenset[str]] = frozenset({"request_id"})

    name: Principal
    password: Secret
    is_new: bool = True
    request_id: Annotated[str, Meta(max_length=64)] = ""

    def __repr__(self) -> str:
        return f"PutUser(name={self.name!r}, …)"


class DeleteUser(Call[None], name="delete-user", needs=on_cluster(ADMIN)):
    """Delete a user and the user's tokens."""

    name: Principal


class UserList(Description):
    """The names of all users."""

    users: list[str]


class ListUsers(Call[UserList], name="list-users", needs=on_cluster(ADMIN)):
    """List the names of all users."""


class CreatedToken(Message):
    """A new token. It is shown this once."""

    id: str
    token: str
    principal: str
    expires_ms: int | None = None

    def __repr__(self) -> str:
        return f"CreatedToken(id={self.id!r}, …)"


class CreateToken(Call[CreatedToken], name="create-token", needs=anybody):
    """Create a token for a principal. ``lifetime_ms`` None: it does not expire.

    ``principal`` None: for the caller. ``grants`` None: all permissions of its principal.
    ``sliding``: it expires when it was not used for its lifetime.
    """

    principal: Principal | None = None
    lifetime_ms: Annotated[int, Meta(ge=1_000, le=LIFETIME_DAYS_MAX * 86_400_000)] | None = None
    grants: Annotated[list[GrantText], Meta(max_length=GRANTS_MAX)] | None = None
    sliding: bool = False


class OpenSession(Call[Authenticated], name="open-session", needs=anybody):
    """Create a token that no broker stores, for the caller.

    It has at most these grants and this lifetime: those of a caller with a token limit them.
    """

    grants: Annotated[list[GrantText], Meta(max_length=GRANTS_MAX)]
    lifetime_ms: Annotated[int, Meta(ge=1_000, le=86_400_000)]


class TokenDescription(Description):
    """A token, without its secret. Times are in ms since 1970."""

    id: str
    principal: str
    created_ms: int
    expires_ms: int | None
    grants: list[str] | None


class TokenList(Description):
    """All tokens, or those of the caller if it may not see others."""

    tokens: list[TokenDescription]


class ListTokens(Call[TokenList], name="list-tokens", needs=described):
    """List all tokens, or those of the caller if it may not see others."""


class RevokeToken(Call[None], name="revoke-token", needs=anybody):
    """Revoke a token by its id. Connections that use it are refused immediately."""

    id: str


class RuleText(Message):
    """A rule. ``effect``: allow or deny. ``operation``: one, or ``all``."""

    principal: Principal
    effect: str
    operation: str
    resource: str


class RuleList(Description):
    """Rules, ordered by principal and resource."""

    rules: list[RuleText]


class AddRule(RuleText, Call[None], name="add-rule", needs=on_cluster(ADMIN)):
    """Add a rule, unless it already exists."""


class RemoveRule(RuleText, Call[None], name="remove-rule", needs=on_cluster(ADMIN)):
    """Remove a rule."""


class ListRules(Call[RuleList], name="list-rules", needs=on_cluster(ADMIN)):
    """List all rules."""


class SetQuota(Call[None], name="set-quota", needs=on_cluster(ADMIN)):
    """Set the quota of a principal, or the default quota with ``*``."""

    principal: Principal
    quota: Quota


class RemoveQuota(Call[None], name="remove-quota", needs=on_cluster(ADMIN)):
    """Remove the quota of a principal, or the default quota with ``*``."""

    principal: Principal


class QuotaList(Description):
    """The quotas, by principal."""

    quotas: dict[str, Quota]


class ListQuotas(Call[QuotaList], name="list-quotas", needs=on_cluster(ADMIN)):
    """List all quotas."""


class Permissions(Description):
    """The operations that the caller may do, by resource."""

    operations: dict[str, list[Operation]]


class GetPermissions(Call[Permissions], name="get-permissions", needs=anybody):
    """Look up the caller's own permissions on resources such as ``topic:flights`` or ``cluster``.

    ``topic:*`` has the operations that the caller may do on at least one topic. A resource need not
    exist.
    """

    resources: Annotated[list[ResourceText], Meta(max_length=GRANTS_MAX)]


class Decision(Description):
    """Whether the principal may do it, and the rules that apply."""

    is_allowed: bool
    rules: list[RuleText]


class CheckAccess(Call[Decision], name="check-access", needs=on_cluster(ADMIN)):
    """Check whether a principal may do something."""

    principal: Principal
    operation: str
    resource: str
