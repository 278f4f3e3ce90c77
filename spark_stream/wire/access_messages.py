"""Messages about who calls, and about users, tokens, rules and quotas."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from msgspec import Meta

from spark_stream.access.quotas import Quota
from spark_stream.wire.messages import Description, Message

Principal = Annotated[str, Meta(min_length=1, max_length=255)]
GRANTS_MAX: Final = 1_000
LIFETIME_DAYS_MAX: Final = 36_500
"""The longest lifetime of a token that expires."""
Secret = Annotated[str, Meta(max_length=4096)]


class Authenticate(Message):
    """Says who calls: a user and a password, or a token; never logged."""

    user: Principal | None = None
    password: Secret | None = None
    token: Secret | None = None

    def __repr__(self) -> str:
        return f"Authenticate(user={self.user!r}, …)"


class Authenticated(Message):
    """Who the caller is. ``session``: a token to send instead of the password, until it expires.

    ``expires_ms``: on the broker's wall clock, since 1970; None: never. ``left_ms``: how long that
    is from now on, for clients whose clock is another.
    """

    principal: str
    session: str | None = None
    expires_ms: int | None = None
    left_ms: int | None = None

    def __repr__(self) -> str:
        return f"Authenticated(principal={self.principal!r}, …)"


class GrantText(Message):
    """What a token may be used for: an operation (or ``all``) on a resource, as texts."""

    operation: Annotated[str, Meta(max_length=32)]
    resource: Annotated[str, Meta(max_length=300)]


class PutUser(Message):
    """Adds a user, or changes a user's password. ``is_new``: the user must not exist yet.

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


class NamedUser(Message):
    """Names a user."""

    name: Principal


class UserList(Description):
    """The names of all users."""

    users: list[str]


class CreateToken(Message):
    """Makes a token for a principal. ``lifetime_ms`` None: it does not expire.

    ``principal`` None: for the caller. ``grants`` None: all that its principal may do. ``sliding``:
    it expires once it was not used for its lifetime.
    """

    principal: Principal | None = None
    lifetime_ms: Annotated[int, Meta(ge=1_000, le=LIFETIME_DAYS_MAX * 86_400_000)] | None = None
    grants: Annotated[list[GrantText], Meta(max_length=GRANTS_MAX)] | None = None
    sliding: bool = False


class OpenSession(Message):
    """Asks for a token that no broker stores, for the caller, with these grants and lifetime."""

    grants: Annotated[list[GrantText], Meta(max_length=GRANTS_MAX)]
    lifetime_ms: Annotated[int, Meta(ge=1_000, le=86_400_000)]


class CreatedToken(Message):
    """A new token. It is shown this once."""

    id: str
    token: str
    principal: str
    expires_ms: int | None = None

    def __repr__(self) -> str:
        return f"CreatedToken(id={self.id!r}, …)"


class TokenDescription(Description):
    """What is known of a token. Times are in ms since 1970."""

    id: str
    principal: str
    created_ms: int
    expires_ms: int | None
    grants: list[str] | None


class TokenList(Description):
    """All tokens, or those of the caller if it may not see others."""

    tokens: list[TokenDescription]


class NamedToken(Message):
    """Names a token by its id."""

    id: str


class RuleText(Message):
    """A rule. ``effect``: allow or deny; ``operation``: one, or ``all``."""

    principal: Principal
    effect: str
    operation: str
    resource: str


class RuleList(Description):
    """Rules, ordered by principal and resource."""

    rules: list[RuleText]


class SetQuota(Message):
    """Gives a principal a quota, in the place of the one that it has; ``*``: the default."""

    principal: Principal
    quota: Quota


class NamedPrincipal(Message):
    """Names a principal, or all that have no quota of their own by ``*``."""

    principal: Principal


class QuotaList(Description):
    """The quotas, by principal."""

    quotas: dict[str, Quota]


class CheckAccess(Message):
    """Asks whether a principal may do something."""

    principal: Principal
    operation: str
    resource: str


class Decision(Description):
    """Whether the principal may do it, and the rules that apply."""

    is_allowed: bool
    rules: list[RuleText]
