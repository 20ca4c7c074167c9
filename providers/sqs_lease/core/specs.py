"""Policies and failure rules as plain values (JSON), so that they can travel to another process, and by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any, Final, TypeAlias, TypeVar

from sqs_lease.core.durations import Duration
from sqs_lease.core.failure_rules import (
    BackoffRule,
    ByExceptionRule,
    DeadLetterRule,
    ExpireRule,
    FailureRule,
    ReleaseRule,
    release,
)
from sqs_lease.core.policies import Buffered, Fixed, Growing, Never, RenewalPolicy, Threshold

POLICIES: Final[Mapping[str, type[RenewalPolicy]]] = {
    "growing": Growing,
    "threshold": Threshold,
    "buffered": Buffered,
    "fixed": Fixed,
    "never": Never,
}
"""The policies by the name that users write."""

FAILURE_RULES: Final[Mapping[str, type[FailureRule]]] = {
    "release": ReleaseRule,
    "backoff": BackoffRule,
    "expire": ExpireRule,
    "dead_letter": DeadLetterRule,
}
"""The failure rules by the name that users write; ``by_exception`` is made of these."""

OnFailure: TypeAlias = FailureRule | str | Mapping[str, Any]
"""A failure rule, its name, or a mapping of its ``kind`` and its arguments, as users write it in YAML."""

_BY_EXCEPTION: Final = "by_exception"
_KIND: Final = "kind"

_Kind = TypeVar("_Kind")


def resolve_policy(policy: RenewalPolicy | str | None, *, visibility: Duration | None = None) -> RenewalPolicy:
    """Return the policy that a user gave as an object or a name, with the given visibility timeout, if any.

    Args:
        policy: A policy, the name of one (a key of :data:`POLICIES`), or None for :class:`Growing`.
        visibility: The visibility timeout, as a shortcut; seconds or a ``timedelta``.

    Raises:
        ValueError: No policy has that name, ``policy`` has another visibility timeout already, or the
            visibility timeout is out of range.
        TypeError: The named policy needs more arguments.
    """
    if policy is None:
        return Growing(visibility=visibility)
    if isinstance(policy, RenewalPolicy):
        if visibility is None:
            return policy
        with_visibility = replace(policy, visibility=visibility)
        if policy.visibility is not None and policy.visibility_seconds != with_visibility.visibility_seconds:
            raise ValueError(
                f"visibility={visibility!r} contradicts the policy's own visibility={policy.visibility!r}; give it once"
            )
        return with_visibility
    if not isinstance(policy, str) or policy not in POLICIES:
        raise ValueError(f"policy must be one of {', '.join(POLICIES)} or a policy object, not {policy!r}")
    try:
        return POLICIES[policy](visibility=visibility)
    except TypeError as error:
        raise TypeError(f"the policy {policy!r} needs arguments: pass the object instead ({error})") from error


def resolve_failure_rule(on_failure: OnFailure | None) -> FailureRule:
    """Return the failure rule that a user described.

    Args:
        on_failure: A rule; the name of one (a key of :data:`FAILURE_RULES`); a mapping such as
            ``{"kind": "backoff", "initial": 30}``; or None for :func:`release`.

    Raises:
        ValueError: No rule has that name, or an argument is out of range.
        TypeError: It is something else, or an argument is unknown.
    """
    if on_failure is None:
        return release()
    if isinstance(on_failure, FailureRule):
        return on_failure
    if not isinstance(on_failure, str | Mapping):
        raise TypeError(
            f"on_failure must be a failure rule such as dead_letter(), or one of {', '.join(FAILURE_RULES)}, "
            f"not {on_failure!r}"
        )
    arguments = {_KIND: on_failure} if isinstance(on_failure, str) else dict(on_failure)
    kind = arguments.pop(_KIND, None)
    if not isinstance(kind, str) or kind not in FAILURE_RULES:
        raise ValueError(f"on_failure must be one of {', '.join(FAILURE_RULES)}, not {kind!r}")
    try:
        return FAILURE_RULES[kind](**arguments)
    except TypeError as error:
        raise TypeError(f"the failure rule {kind!r} does not take these arguments ({error})") from error


def encode_policy(policy: RenewalPolicy) -> dict[str, Any]:
    """Return a policy as plain values: ``{"policy": name, **arguments}``, durations in seconds.

    Raises:
        TypeError: ``policy`` is not one of the known policies.
    """
    return {"policy": _name_of(policy, POLICIES), **_plain_fields(policy)}


def decode_policy(spec: Mapping[str, Any]) -> RenewalPolicy:
    """Build a policy from what :func:`encode_policy` returned.

    Raises:
        ValueError: The name or a value is wrong.
        TypeError: An argument is unknown.
    """
    return _build(spec, "policy", POLICIES)


def encode_failure_rule(rule: FailureRule) -> dict[str, Any]:
    """Return a failure rule as plain values: ``{"on_failure": name, **arguments}``, durations in seconds.

    Raises:
        TypeError: ``rule`` is not one of the known rules.
    """
    if isinstance(rule, ByExceptionRule):
        return {
            "on_failure": _BY_EXCEPTION,
            "rules": [[name, encode_failure_rule(one)] for name, one in rule.rules],
            "otherwise": encode_failure_rule(rule.otherwise),
        }
    return {"on_failure": _name_of(rule, FAILURE_RULES), **_plain_fields(rule)}


def decode_failure_rule(spec: Mapping[str, Any]) -> FailureRule:
    """Build a failure rule from what :func:`encode_failure_rule` returned.

    Raises:
        ValueError: The name or a value is wrong.
        TypeError: An argument is unknown, or something is not of its type.
    """
    if isinstance(spec, Mapping) and spec.get("on_failure") == _BY_EXCEPTION:
        if not spec.keys() >= {"rules", "otherwise"}:
            raise ValueError(f"{_BY_EXCEPTION} lacks its rules")
        return ByExceptionRule(
            tuple((_text(name), decode_failure_rule(one)) for name, one in spec["rules"]),
            decode_failure_rule(spec["otherwise"]),
        )
    return _build(spec, "on_failure", FAILURE_RULES)


def _text(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"the name of an exception is a {type(name).__name__}")
    return name


def _name_of(value: object, names: Mapping[str, type[Any]]) -> str:
    for name, kind in names.items():
        # Exactly the class: a subclass would come back as its parent, and behave otherwise.
        if type(value) is kind:
            return name
    raise TypeError(f"{type(value).__name__} cannot be sent to another process; use one of {', '.join(names)}")


def _plain_fields(value: Any) -> dict[str, Any]:
    plain = {}
    for field in fields(value):
        content = getattr(value, field.name)
        plain[field.name] = content.total_seconds() if isinstance(content, timedelta) else content
    return plain


def _build(spec: Mapping[str, Any], name_key: str, names: Mapping[str, type[_Kind]]) -> _Kind:
    if not isinstance(spec, Mapping):
        raise TypeError(f"a mapping with {name_key!r} is a {type(spec).__name__}")
    arguments = dict(spec)
    name = arguments.pop(name_key, None)
    if not isinstance(name, str) or name not in names:
        raise ValueError(f"{name_key} must be one of {', '.join(names)}, not {name!r}")
    return names[name](**arguments)
