"""The authorizer: it authenticates callers, and decides by the rules that this broker sees.

Removed users, revoked tokens and changed rules take effect within a second, on open streams too:
the view of the cluster is refreshed many times a second, and the :class:`StreamPermit` of each
stream is checked again after each change of a record about access.
"""

from __future__ import annotations

import math
import shlex
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from spark_stream.access.callers import (
    ANONYMOUS,
    NO_PASSWORD,
    OWNER,
    SESSION_PREFIX,
    Caller,
    KnownBy,
    is_password,
    is_token,
    rules_of,
    session_of,
    sign_session,
    token_id_of,
)
from spark_stream.access.rules import (
    OPERATIONS,
    Need,
    Operation,
    Pattern,
    Resource,
    ResourceKind,
)
from spark_stream.broker.access.audit import Audit
from spark_stream.broker.access.jwts import JwtIssuer
from spark_stream.cluster.access import Token
from spark_stream.cluster.view import ClusterView, News, Snapshot
from spark_stream.environment import Clock
from spark_stream.errors import (
    InvalidRequest,
    IsologError,
    PermissionDenied,
    Unauthenticated,
    UnknownTopic,
)
from spark_stream.loggers import logger_of
from spark_stream.wire.access_messages import Authenticate, Authenticated

logger = logger_of(__name__)

SESSION_S: Final = 3600.0
"""The life of a session that was opened with a password."""
_EXTENDED_BELOW: Final = 0.75
"""Using a sliding token renews its whole life, once less than this part of it is left."""
_REFRESHED_S: Final = 0.02
_FAILURES_FREE: Final = 5
"""The wrong passwords, for one user from one address, before the next attempt has to wait."""
_FAILURES_KEPT: Final = 10_000
_WAIT_FIRST_S: Final = 1.0
_WAIT_MAX_S: Final = 60.0
_HINT: Final = (
    "Give user and password, a token, or a certificate (brokers ask for one if [tls] has `ca`)."
)

_NO_TOKEN: Final = (
    "A token begins with isolog_, or is a JWT of the issuer that brokers know; a file is tokenFile."
)


class AccessSettings(Struct, frozen=True):
    """The settings of authentication.

    ``requires_authentication``: whether callers have to authenticate. ``super_users`` may do
    everything. ``issuer``: the issuer of accepted JSON Web Tokens.
    """

    requires_authentication: bool = False
    super_users: frozenset[str] = frozenset()
    issuer: JwtIssuer | None = None


def not_authenticated() -> Unauthenticated:
    """Return the error for a caller that has not authenticated."""
    return Unauthenticated("this broker requires authentication", hint=_HINT)


class ConnectionIdentity:
    """A connection and its caller, None until it authenticates. It may authenticate again."""

    def __init__(self, address: str, caller: Caller | None) -> None:
        self.address = address
        self.caller = caller

    def known(self) -> Caller:
        """Return the caller.

        Raises:
            Unauthenticated: The connection has not authenticated.
        """
        if self.caller is None:
            raise not_authenticated()
        return self.caller


class StreamPermit:
    """The needs of an open stream. ``refused`` is called once when these are revoked."""

    def __init__(
        self,
        identity: ConnectionIdentity,
        needs: Sequence[Need],
        refused: Callable[[IsologError], None],
    ) -> None:
        self.identity = identity
        self.needs = needs
        self.refused = refused


class Authorizer:
    """The access of one broker, for any thread. ``key``, of the cluster, signs sessions."""

    def __init__(
        self,
        view: ClusterView,
        key: bytes,
        clock: Clock,
        settings: AccessSettings,
        audit: Audit,
        refresh: Callable[[], None] = lambda: None,
    ) -> None:
        """Create the authorizer.

        ``refresh`` brings the view up to date: a user may have been added a moment ago.
        """
        self._refresh = refresh
        self.audit = audit
        self.extend: Callable[[Token], None] = lambda token: None
        """Stores a token whose life was extended. It is set once the broker can write records."""
        self._view = view
        self._key = key
        self._clock = clock
        self._settings = settings
        self._lock = threading.Lock()  # guards the failures
        self._failures: OrderedDict[tuple[str, str], tuple[int, float]] = OrderedDict()
        self._refreshed = -_REFRESHED_S
        self._permitting = threading.Lock()  # guards the next
        self._permits: weakref.WeakSet[StreamPermit] = weakref.WeakSet()
        view.subscribe(self._on_news)

    @property
    def requires_authentication(self) -> bool:
        """Whether callers have to authenticate."""
        return self._settings.requires_authentication

    # -- who calls --------------------------------------------------------------------------------

    def identify(self, names: Sequence[str], address: str, *, is_local: bool) -> Caller | None:
        """Return the caller of a new connection, or None if it has to authenticate.

        ``names``: those of the certificate that was shown. ``is_local``: through a Unix socket.
        """
        if is_local:
            return OWNER
        if not self._settings.requires_authentication:
            name = names[0] if names else ANONYMOUS.principal
            return replace(ANONYMOUS, principal=name, address=address)
        if not names:
            return None
        return self._known(Caller(names[0], KnownBy.CERTIFICATE, address=address))

    def needs_keys(self, asked: Authenticate) -> bool:
        """Return whether the caller gave a JWT whose issuer's keys have to be fetched first.

        If so, call :meth:`fetch_keys` on a thread that may wait. Otherwise ``authenticate`` would
        fetch them.
        """
        issuer, token = self._settings.issuer, asked.token or ""
        return issuer is not None and JwtIssuer.is_jwt(token) and issuer.needs_keys(token)

    def fetch_keys(self, asked: Authenticate) -> None:
        """Fetch the keys for the caller's JWT from its issuer, if they are still needed."""
        if self._settings.issuer is not None and asked.token is not None:
            self._settings.issuer.fetch_keys(asked.token)

    def authenticate(self, identity: ConnectionIdentity, asked: Authenticate) -> Authenticated:
        """Authenticate the caller. Answer with a session, if it gave a password.

        A connection stays with its first principal. Comparing a password takes 32 MiB and most of a
        processor for a while: call it on a thread that may wait, and only a few times concurrently.

        Raises:
            Unauthenticated: The credential is wrong, has expired, or was revoked.
            InvalidRequest: There is no credential, or more than one.
        """
        try:
            return self._authenticate(identity, asked)
        except IsologError as error:
            who = asked.user or token_id_of(asked.token or "")
            self.audit.note(identity.caller, identity.address, "authenticate", who, error.code)
            logger.debug(
                "authentication of %s as %r failed: %s", identity.address, who, error.message
            )
            raise

    def _authenticate(self, identity: ConnectionIdentity, asked: Authenticate) -> Authenticated:
        if identity.caller is not None and identity.caller.source in (KnownBy.OPEN, KnownBy.SOCKET):
            # no authentication is required
            return Authenticated(principal=identity.caller.principal)
        if asked.token is not None and asked.user is None and asked.password is None:
            caller = self._of_token(asked.token)
        elif asked.token is None and asked.user is not None and asked.password is not None:
            caller = self._of_password(asked.user, asked.password, identity.address)
        else:
            raise InvalidRequest("give either user and password, or a token")
        with self._lock:
            before = identity.caller
            if before is None or before.principal == caller.principal:
                identity.caller = replace(caller, address=identity.address)
        if before is not None and before.principal != caller.principal:
            raise InvalidRequest(
                f"this connection has authenticated as {before.principal!r}, and cannot change to"
                f" {caller.principal!r}",
                hint="Give a certificate or a credential, not both. Environment variables"
                " (ISOLOG_USER, …) count.",
            )
        logger.debug(
            "%s authenticated as %s, by %s", identity.address, caller.principal, caller.source
        )
        session = sign_session(caller, self._key) if caller.source is KnownBy.USER else None
        return Authenticated(
            principal=caller.principal,
            session=session,
            expires_ms=caller.expires_ms,
            left_ms=None if caller.expires_ms is None else caller.expires_ms - self._now_ms(),
        )

    def _of_token(self, token: str) -> Caller:
        if token.startswith(SESSION_PREFIX):
            found = session_of(token, self._key)
            if found is None:
                raise Unauthenticated("the session is not from this cluster", hint=_HINT)
            self.check_valid(found)
            return self._known(found)
        if self._settings.issuer is not None and JwtIssuer.is_jwt(token):
            return self._known(self._settings.issuer.caller_of(token))
        token_id = token_id_of(token)
        if token_id and token_id not in self._view.now.access.tokens:
            self._refresh_again()
        kept = self._view.now.access.tokens.get(token_id)
        if kept is None or not is_token(token, kept.digest):
            problem = "the token is not known, or was revoked" if token_id else "this is no token"
            raise Unauthenticated(problem, hint=_HINT if token_id else _NO_TOKEN)
        found = Caller(
            kept.principal,
            KnownBy.TOKEN,
            kept.id,
            grants=kept.grants,
            expires_ms=kept.expires_ms,
        )
        self.check_valid(found)
        if kept.sliding_ms is not None and found.expires_ms is not None:
            left_ms = found.expires_ms - self._now_ms()
            if left_ms < kept.sliding_ms * _EXTENDED_BELOW:
                expires_ms = self._now_ms() + kept.sliding_ms
                found = replace(found, expires_ms=min(expires_ms, kept.until_ms or expires_ms))
                try:
                    self.extend(replace(kept, expires_ms=found.expires_ms))
                except IsologError as error:  # it is still valid, and is extended the next time
                    logger.warning("cannot extend token %s: %s", kept.id, error)
        return self._known(found)

    def sign(self, caller: Caller) -> str:
        """Return a session that states the caller, and its grants."""
        return sign_session(caller, self._key)

    def _of_password(self, name: str, password: str, address: str) -> Caller:
        place = (host_of(address), name)
        self._check_not_too_often(place)
        self._refresh()  # for unknown users too, so that the time shows nothing
        user = self._view.now.access.users.get(name)
        right = is_password(password, NO_PASSWORD if user is None else user.password)
        if user is None or not right:
            self._note_failure(place)
            raise Unauthenticated("the user or the password is wrong", hint=_HINT)
        with self._lock:
            self._failures.pop(place, None)
        expires_ms = self._now_ms() + int(SESSION_S * 1000)
        return self._known(Caller(name, KnownBy.USER, user.version, expires_ms=expires_ms))

    def _check_not_too_often(self, place: tuple[str, str]) -> None:
        with self._lock:
            count, until = self._failures.get(place, (0, 0.0))
        left = until - self._clock.monotonic()
        if count >= _FAILURES_FREE and left > 0:
            raise Unauthenticated(
                f"too many wrong passwords: wait {math.ceil(left)} s before the next attempt",
                hint="Check the password. Another client may be trying passwords.",
            )

    def _note_failure(self, place: tuple[str, str]) -> None:
        with self._lock:
            count = self._failures.pop(place, (0, 0.0))[0] + 1
            over = max(0, count - _FAILURES_FREE)
            wait_s = min(_WAIT_MAX_S, _WAIT_FIRST_S * 2.0 ** min(over, 16))
            self._failures[place] = count, self._clock.monotonic() + wait_s
            while len(self._failures) > _FAILURES_KEPT:
                self._failures.popitem(last=False)

    def _known(self, caller: Caller) -> Caller:
        is_super = caller.principal in self._settings.super_users
        granted = None if caller.grants is None else rules_of(caller.grants)
        return replace(caller, is_super=is_super, granted=granted)

    def check_valid(self, caller: Caller) -> None:
        """Check that the caller's credential is still valid.

        Raises:
            Unauthenticated: The credential has expired, or was revoked.
        """
        if caller.expires_ms is not None and self._now_ms() >= caller.expires_ms:
            raise Unauthenticated(f"the {_credential_of(caller)} has expired", hint=_HINT)
        known = self._view.now.access
        if caller.source is KnownBy.USER:
            user = known.users.get(caller.principal)
            if user is None or user.version != caller.source_id:
                raise Unauthenticated(
                    f"user {caller.principal!r} was deleted, or the password was changed",
                    hint=_HINT,
                )
        elif caller.source is KnownBy.TOKEN and not self.is_token_left(caller.source_id):
            raise Unauthenticated("the token was revoked", hint=_HINT)

    def is_token_left(self, token_id: str) -> bool:
        """Return whether the token, and each token with which it was made, is still valid."""
        tokens = self._view.now.access.tokens
        now_ms = self._now_ms()
        found = tokens.get(token_id)
        while found is not None and found.parent:
            found = tokens.get(found.parent)
            if found is not None and found.has_expired(now_ms):
                return False
        return found is not None

    def _now_ms(self) -> int:
        return self._clock.wall_us() // 1000

    def is_super(self, principal: str) -> bool:
        """Return whether the principal may do everything."""
        return not self._settings.requires_authentication or principal in self._settings.super_users

    def _refresh_again(self) -> None:
        """Bring the view up to date, but not often: unauthenticated callers can cause it."""
        now = self._clock.monotonic()
        if now - self._refreshed >= _REFRESHED_S:
            self._refreshed = now
            self._refresh()

    def has_rules(self, caller: Caller) -> bool:
        """Return whether a rule allows the caller anything."""
        rules = self._view.now.access.rule_set
        return caller.is_super or rules.allows_anything(caller.principal)

    # -- permissions ------------------------------------------------------------------------------

    def may(self, caller: Caller, operation: Operation, resource: Resource) -> bool:
        """Return whether the caller may do the operation on the resource."""
        return caller.may(self._view.now.access.rule_set, operation, resource)

    def operations(self, caller: Caller, among: Pattern) -> list[Operation]:
        """Return the operations that the caller may do on one of these resources."""
        rules = self._view.now.access.rule_set
        return [each for each in OPERATIONS[among.kind] if caller.may_any(rules, each, among)]

    def check(self, caller: Caller, needs: Sequence[Need], *, is_open: bool = False) -> None:
        """Check that the caller has all of the needed permissions.

        ``is_open``: the caller had them until now, so it has seen that the topic exists.
        UnknownTopic would then mean that its records are lost.

        Raises:
            Unauthenticated: The caller's credential is no longer valid.
            UnknownTopic: The caller may not even see that the topic exists.
            PermissionDenied: One of the operations is not allowed.
        """
        try:
            self.check_valid(caller)
        except Unauthenticated as error:
            what = caller.source_id if caller.source is KnownBy.TOKEN else caller.source
            self.audit.note(caller, caller.address, "session", what, error.code)
            raise
        for operation, resource in needs:
            if not self.may(caller, operation, resource):
                raise self._refusal(caller, operation, resource, is_open)

    def _refusal(
        self, caller: Caller, operation: Operation, resource: Resource, is_open: bool
    ) -> IsologError:
        is_hidden = not self.may(caller, Operation.DESCRIBE, resource)
        is_hidden = is_hidden and not is_open and operation is not Operation.CREATE
        what = "administer" if operation is Operation.ADMIN else operation
        meant = f"{resource.kind}:job/*" if resource.name.startswith("job/") else str(resource)
        refusal: IsologError = PermissionDenied(
            f"{caller.principal!r} may not {what} {resource}",
            hint="An administrator can allow it: isolog acl allow"
            f" {shlex.quote(caller.principal)} {operation} {shlex.quote(meant)}",
            principal=caller.principal,
            operation=operation.value,
            resource=str(resource),
            at_opening=not is_open,
        )
        self.audit.note(caller, caller.address, operation, str(resource), refusal.code)
        if resource.kind is ResourceKind.TOPIC and is_hidden:
            return UnknownTopic(f"there is no topic {resource.name!r}", topic=resource.name)
        return refusal

    # -- open streams -----------------------------------------------------------------------------

    def admit(
        self,
        identity: ConnectionIdentity,
        needs: Sequence[Need],
        refused: Callable[[IsologError], None],
    ) -> StreamPermit:
        """Check the stream's needs, now and after each change while the permit is kept.

        Raises: as :meth:`check`.
        """
        admitted = StreamPermit(identity, needs, refused)
        if self._settings.requires_authentication:
            with self._permitting:
                self._permits.add(admitted)
        self.check(identity.known(), needs)  # after it is noted, so that no change is missed
        return admitted

    def recheck(self) -> None:
        """End streams that are no longer allowed. This is called regularly, because of expiries."""
        with self._permitting:
            permits = list(self._permits)
        for each in permits:
            try:
                self.check(each.identity.known(), each.needs, is_open=True)
            except IsologError as error:
                with self._permitting:
                    is_first = each in self._permits
                    self._permits.discard(each)
                if is_first:
                    each.refused(error)

    def _on_news(self, news: News, now: Snapshot) -> None:
        if news.access:
            self.recheck()


def host_of(address: str) -> str:
    """Return the host of a connection's address, such as ``127.0.0.1:53112``."""
    return address.rpartition(":")[0] or address


def _credential_of(caller: Caller) -> str:
    words = {KnownBy.TOKEN: "token", KnownBy.JWT: "JWT"}
    return words.get(caller.source, "session")
