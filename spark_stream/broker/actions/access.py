"""Handlers of calls on users, tokens, rules and quotas: each is a record of the metadata store."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from spark_stream.access.callers import (
    Caller,
    Grant,
    KnownBy,
    hash_password,
    intersection,
    is_covered,
    new_token,
    token_digest,
)
from spark_stream.access.rules import (
    ANYBODY,
    Effect,
    Operation,
    Pattern,
    Resource,
    Rule,
    RuleSet,
    check_operation,
)
from spark_stream.broker.actions.context import BrokerContext, handles
from spark_stream.cluster.access import QUOTAS, TOKENS, USERS, Token, User, encode, rule_key
from spark_stream.errors import InvalidRequest, PermissionDenied, Unauthenticated, UserExists
from spark_stream.scripts.steps import DeleteRecord, Get, PutRecord, Script
from spark_stream.wire.access_messages import (
    GRANTS_MAX,
    AddRule,
    Authenticated,
    CheckAccess,
    CreatedToken,
    CreateToken,
    Decision,
    DeleteUser,
    GetPermissions,
    GrantText,
    ListQuotas,
    ListRules,
    ListTokens,
    ListUsers,
    OpenSession,
    Permissions,
    PutUser,
    QuotaList,
    RemoveQuota,
    RemoveRule,
    RevokeToken,
    RuleList,
    RuleText,
    SetQuota,
    TokenDescription,
    TokenList,
    UserList,
)

ALL: Final = "all"
_TOKENS_MAX: Final = 1_000
"""The tokens that one principal may have."""
_OF_JWT_MS: Final = 7 * 86_400_000
"""The longest life of a token that was made with a JWT, which cannot be revoked."""


@handles(PutUser)
def put_user(context: BrokerContext, asked: PutUser) -> None:
    if asked.name == ANYBODY:
        raise InvalidRequest("a user cannot be named *: rules use it for all principals")
    request_id = asked.request_id or secrets.token_hex(8)
    made = User(asked.name, hash_password(asked.password), request_id)
    found = _put(
        context,
        USERS + asked.name,
        encode(made),
        is_new=asked.is_new,
        unless_version=request_id,
    )
    if found is not None and found["version"] == request_id:
        return  # an earlier attempt of this request was carried out
    if found is not None and asked.is_new:
        raise UserExists(f"user {asked.name!r} exists already")
    if found is None and not asked.is_new:
        raise InvalidRequest(
            f"there is no user {asked.name!r}", hint="`isolog user add` makes one."
        )


@handles(DeleteUser)
def delete_user(context: BrokerContext, asked: DeleteUser) -> None:
    """Delete the user's tokens, the user, and the tokens that were made during the call."""
    _delete_tokens(context, asked.name)
    found = _put(context, USERS + asked.name, None)
    _delete_tokens(context, asked.name)
    if found is None:
        raise _missing(f"there is no user {asked.name!r}", "See `isolog user list`.")


def _delete_tokens(context: BrokerContext, principal: str) -> None:
    context.host.refresh()
    for each in context.host.view.now.access.tokens.values():
        if each.principal == principal:
            _put(context, TOKENS + each.id, None)


@handles(ListUsers)
def list_users(context: BrokerContext, asked: ListUsers) -> UserList:
    context.host.refresh()
    return UserList(users=sorted(context.host.view.now.access.users))


@handles(OpenSession)
def open_session(context: BrokerContext, asked: OpenSession) -> Authenticated:
    """Sign a session of the caller that is restricted to the requested grants.

    If the caller has used a restricted token, the session gets the grants that this token allows
    too.

    The session ends with the user's password or the token that the caller has used. A session of a
    caller with a certificate or a JWT cannot be revoked, and lasts a day at most.
    """
    caller = _maker(context)
    context.check_has_rules()
    grants = _allowed_part(caller, tuple(map(_grant, asked.grants)))
    expires_ms = context.transactions.now_ms() + asked.lifetime_ms
    if caller.source is KnownBy.TOKEN:
        expires_ms = min(expires_ms, caller.expires_ms or expires_ms)
    made = replace(caller, grants=grants, expires_ms=expires_ms)
    session = context.authorizer.sign(made)
    return Authenticated(principal=caller.principal, session=session, expires_ms=expires_ms)


def _maker(context: BrokerContext) -> Caller:
    """Return the caller, unless it has only the session of a query: tasks make no credentials.

    Raises:
        PermissionDenied: The caller has only the session of a query.
    """
    caller = context.caller
    if caller.is_session and caller.grants is not None:
        raise PermissionDenied("the session of a query cannot make tokens or sessions")
    return caller


def _limited(caller: Caller, grants: tuple[Grant, ...] | None) -> tuple[Grant, ...] | None:
    """Return the grants, or the caller's own without a request for any.

    Raises:
        PermissionDenied: The grants are more than those of the caller's token.
    """
    if caller.grants is None:
        return grants
    if grants is None:
        return caller.grants
    for each in grants:
        if not is_covered(each, caller.grants):
            raise PermissionDenied(
                f"a token cannot allow more than the one that it is made with: {_text(each)}",
                hint="Request only grants that your token has.",
            )
    return grants


def _allowed_part(caller: Caller, grants: tuple[Grant, ...]) -> tuple[Grant, ...]:
    """Return those of a query's grants that the caller's token allows too.

    Beyond ``GRANTS_MAX``, grants to *describe* are dropped first.

    Raises:
        PermissionDenied: The token allows none of the grants.
    """
    if caller.grants is None:
        return grants
    allowed = intersection(grants, caller.grants)
    if not allowed:
        raise PermissionDenied(
            f"the token allows none of the query's grants: {', '.join(map(_text, grants))}",
            hint="Use a token with more grants: docs/security.md lists those that a job needs.",
        )
    # read and write imply describe
    by_use = sorted(allowed, key=lambda each: each.operation is Operation.DESCRIBE)
    return tuple(by_use[:GRANTS_MAX])


def _text(grant: Grant) -> str:
    return f"{grant.operation or ALL} {grant.resources}"


@handles(CreateToken)
def create_token(context: BrokerContext, asked: CreateToken) -> CreatedToken:
    """Make a token for the caller. An administrator may make one for any principal.

    A token that is made with another token allows no more than that, and lasts no longer. One that
    is made with a JWT lasts a week at most. A sliding token is for a query, which requests all
    grants that it may need. The token gets those of them that the caller's token allows.
    """
    caller = _maker(context)
    context.check_has_rules()
    principal = asked.principal or caller.principal
    if principal == ANYBODY:
        raise InvalidRequest("a token is for one principal, and * stands for all")
    if principal != caller.principal and not context.is_administrator:
        raise PermissionDenied(f"{caller.principal!r} may not make a token for {principal!r}")
    given = None if asked.grants is None else tuple(map(_grant, asked.grants))
    if asked.sliding and given is not None:
        grants: tuple[Grant, ...] | None = _allowed_part(caller, given)
    else:
        grants = _limited(caller, given)
    if asked.sliding and asked.lifetime_ms is None:
        raise InvalidRequest("a sliding token needs a lifetime: give lifetime_ms")
    now_ms = context.transactions.now_ms()
    expires_ms = None if asked.lifetime_ms is None else now_ms + asked.lifetime_ms
    until_ms = None
    if caller.source is KnownBy.JWT:
        until_ms = now_ms + _OF_JWT_MS
    elif caller.source is KnownBy.TOKEN:
        until_ms = caller.expires_ms
    if until_ms is not None:
        expires_ms = min(expires_ms or until_ms, until_ms)
    token_id, token = new_token()
    made = Token(
        token_id,
        principal,
        token_digest(token),
        now_ms,
        expires_ms,
        grants,
        sliding_ms=asked.lifetime_ms if asked.sliding else None,
        until_ms=until_ms,
        parent=caller.source_id if caller.source is KnownBy.TOKEN else "",
    )
    _remove_ended(context, principal, now_ms)
    tokens = context.host.view.now.access.tokens.values()
    if sum(each.principal == principal for each in tokens) >= _TOKENS_MAX:
        raise InvalidRequest(
            f"{principal!r} has {_TOKENS_MAX} tokens", hint="Revoke some: isolog token revoke ID."
        )
    _put(context, TOKENS + token_id, encode(made), is_new=True)
    try:
        # a user who was removed during the call leaves no token
        context.authorizer.check_valid(caller)
    except Unauthenticated:
        _put(context, TOKENS + token_id, None)
        raise
    return CreatedToken(id=token_id, token=token, principal=principal, expires_ms=expires_ms)


def _remove_ended(context: BrokerContext, principal: str, now_ms: int) -> None:
    """Remove the principal's tokens that have expired, or whose parent token ended.

    Queries leave many.
    """
    for each in context.host.view.now.access.tokens.values():
        is_over = each.has_expired(now_ms) or not context.authorizer.is_token_left(each.id)
        if each.principal == principal and is_over:
            _put(context, TOKENS + each.id, None)


@handles(ListTokens)
def list_tokens(context: BrokerContext, asked: ListTokens) -> TokenList:
    context.host.refresh()
    known = context.host.view.now.access.tokens.values()
    return TokenList(
        tokens=[
            TokenDescription(
                id=each.id,
                principal=each.principal,
                created_ms=each.created_ms,
                expires_ms=each.expires_ms,
                grants=None if each.grants is None else [_text(grant) for grant in each.grants],
            )
            for each in sorted(known, key=lambda each: each.created_ms)
            if _may_see(context, each) and context.authorizer.is_token_left(each.id)
        ]
    )


@handles(RevokeToken)
def revoke_token(context: BrokerContext, asked: RevokeToken) -> None:
    context.host.refresh()
    found = context.host.view.now.access.tokens.get(asked.id)
    if found is None or not _may_see(context, found):
        raise _missing(f"there is no token {asked.id!r}", "See `isolog token list`.")
    _put(context, TOKENS + asked.id, None)


def _may_see(context: BrokerContext, token: Token) -> bool:
    """Return whether the caller may list the token, and revoke it.

    A caller with a restricted token may list that one, and those that were made with it.
    """
    caller = context.caller
    if caller.grants is None:
        return context.is_administrator or token.principal == caller.principal
    shown = caller.source_id if caller.source is KnownBy.TOKEN and not caller.is_session else None
    return shown in (token.id, token.parent)


@handles(AddRule)
def add_rule(context: BrokerContext, asked: AddRule) -> None:
    rule = _rule(asked)
    check_operation(rule.operation, rule.resources.kind)
    _put(context, rule_key(rule), encode(rule))


@handles(RemoveRule)
def remove_rule(context: BrokerContext, asked: RemoveRule) -> None:
    rule = _rule(asked)
    if _put(context, rule_key(rule), None) is None:
        raise _missing(f"there is no rule {str(rule)!r}", "See `isolog acl list`.")


@handles(ListRules)
def list_rules(context: BrokerContext, asked: ListRules) -> RuleList:
    context.host.refresh()
    return RuleList(rules=_texts(context.host.view.now.access.rules))


@handles(SetQuota)
def set_quota(context: BrokerContext, asked: SetQuota) -> None:
    _put(context, QUOTAS + asked.principal, encode(asked.quota))


@handles(RemoveQuota)
def remove_quota(context: BrokerContext, asked: RemoveQuota) -> None:
    if _put(context, QUOTAS + asked.principal, None) is None:
        raise _missing(f"{asked.principal!r} has no quota", "See `isolog quota list`.")


@handles(ListQuotas)
def list_quotas(context: BrokerContext, asked: ListQuotas) -> QuotaList:
    context.host.refresh()
    return QuotaList(quotas=dict(sorted(context.host.view.now.access.quotas.items())))


@handles(GetPermissions)
def get_permissions(context: BrokerContext, asked: GetPermissions) -> Permissions:
    found = {
        each: context.authorizer.operations(context.caller, Pattern.parse(each))
        for each in asked.resources
    }
    return Permissions(operations=found)


@handles(CheckAccess)
def check_access(context: BrokerContext, asked: CheckAccess) -> Decision:
    context.host.refresh()
    known = context.host.view.now.access
    pattern = Pattern.parse(asked.resource)
    if pattern.is_prefix:
        raise InvalidRequest("give one resource, without a * at its end")
    operation, resource = _operation(asked.operation), Resource(pattern.kind, pattern.name)
    if operation is None:
        raise InvalidRequest("give one operation, not all")
    speaking = {
        text: rule
        for text, rule in known.rules.items()
        if rule.principal in (asked.principal, ANYBODY)
        and _fits(rule.resources, resource)
        and (
            rule.operation in (None, operation)
            or operation is Operation.DESCRIBE
            or (rule.operation is Operation.DESCRIBE and rule.effect is Effect.DENY)
        )
    }
    is_super = context.authorizer.is_super(asked.principal)
    return Decision(
        is_allowed=is_super or known.rule_set.allow(asked.principal, operation, resource),
        rules=_texts(speaking),
    )


def _fits(pattern: Pattern, resource: Resource) -> bool:
    only = RuleSet([Rule(ANYBODY, Effect.ALLOW, None, pattern)])
    return only.allow(ANYBODY, Operation.READ, resource)


def _texts(rules: Mapping[str, Rule]) -> list[RuleText]:
    found = sorted(rules.values(), key=lambda each: (each.principal, str(each.resources)))
    return [
        RuleText(
            principal=each.principal,
            effect=each.effect.value,
            operation=each.operation or ALL,
            resource=str(each.resources),
        )
        for each in found
    ]


def _rule(asked: RuleText) -> Rule:
    try:
        effect = Effect(asked.effect)
    except ValueError:
        raise InvalidRequest(
            f"the effect of a rule is allow or deny, not {asked.effect!r}"
        ) from None
    resources = Pattern.parse(asked.resource)
    return Rule(asked.principal, effect, _operation(asked.operation), resources)


def _grant(asked: GrantText) -> Grant:
    operation, resources = _operation(asked.operation), Pattern.parse(asked.resource)
    check_operation(operation, resources.kind)
    return Grant(operation, resources)


def _operation(text: str) -> Operation | None:
    if text == ALL:
        return None
    try:
        return Operation(text)
    except ValueError:
        raise InvalidRequest(
            f"{text!r} is not an operation", hint=f"Take {', '.join(Operation)} or {ALL}."
        ) from None


def _missing(text: str, hint: str) -> InvalidRequest:
    """Return the error for a removal of a record that does not exist."""
    return InvalidRequest(text, hint=hint, already_done=True)


def _put(
    context: BrokerContext,
    key: str,
    value: dict[str, Any] | None,
    *,
    is_new: bool | None = None,
    unless_version: str | None = None,
) -> Mapping[str, Any] | None:
    """Write a record, or remove it (None). Return the value of the record that was found.

    ``is_new``: write only if there is none (True), or only if there is one (False).
    ``unless_version``: a record with this version in its value stays as it is.
    """

    def change() -> Script[Mapping[str, Any] | None]:
        while True:
            record = yield from Get(key)
            if record is None:
                if value is None or is_new is False:
                    return None
            elif is_new is True or record.value.get("version", "") == unless_version:
                return record.value
            version = 0 if record is None else record.version
            done: object
            if value is None:
                done = yield from DeleteRecord(key, version)
            else:
                done = yield from PutRecord(key, value, version)
            if done:
                return None if record is None else record.value

    found: Mapping[str, Any] | None = context.transactions.run(change())
    context.host.refresh()
    return found
