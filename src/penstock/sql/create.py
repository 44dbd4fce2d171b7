"""``CREATE SOURCES``: the grammar of each kind is that of its two models of options.

A secret in clear is refused unless the statement says that it is meant (``allow literal secrets``). Then it is kept
apart from the options, so that it is not shown, logged or stored with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from penstock.errors import UsageError
from penstock.nearest import nearest
from penstock.sources.option_reading import Given, Option, read_clauses, read_settings, unknown_clause, validated
from penstock.sources.option_syntax import Written, options_of
from penstock.sources.syntax import Flag, Secret
from penstock.sql.cursor import StatementCursor
from penstock.sql.statements import AlterSet, CreateSource

__all__ = ["read_alter_set", "read_create"]

_USAGE = "CREATE SOURCES [IF NOT EXISTS] source FROM kind … [WITH (option = value, …)];"
_ALLOW = Option("allow_literal_secrets", ("ALLOW", "LITERAL", "SECRETS"), Flag(), FieldInfo(annotation=bool))
_CLEAR = "Name where it is: 'env:NAME' or 'file:PATH'; or allow it by the option allow literal secrets = true."


def read_create(cursor: StatementCursor, kinds: Mapping[str, Written]) -> CreateSource:
    """Read what follows ``CREATE SOURCES``."""
    cursor.usage(_USAGE)
    if_not_exists = cursor.takes("IF", "NOT", "EXISTS")
    name = cursor.name("source")
    cursor.expects("FROM")
    place = cursor.place()
    kind = _kind(cursor, kinds)
    what = f"a {kind.NAME} source"
    cursor.usage(f"CREATE SOURCES {name} FROM {kind.NAME} … [WITH (option = value, …)];")
    clauses = read_clauses(cursor, options_of(kind.SqlOptions))
    has_settings = cursor.takes("WITH")
    settings = read_settings(cursor, _settings_of(kind), what, options_of(kind.SqlOptions)) if has_settings else {}
    if not cursor.is_at_end():
        raise _misplaced(cursor, kind, what, has_settings=has_settings)
    secrets = _secrets(cursor, {**clauses, **settings}, settings)
    return CreateSource(
        name,
        kind.NAME,
        validated(cursor, kind.SqlOptions, options_of(kind.SqlOptions), _without(clauses, secrets), what, place),
        validated(cursor, kind.WithOptions, options_of(kind.WithOptions), _without(settings, secrets), what, place),
        if_not_exists,
        secrets,
    )


def read_alter_set(cursor: StatementCursor, source: str, kinds: Mapping[str, Written]) -> AlterSet:
    """Read what follows ``ALTER SOURCES source SET``: settings that some kind has."""
    cursor.usage("ALTER SOURCES source SET (option = value, …);")
    options = {option.field: option for kind in kinds.values() for option in reversed(_settings_of(kind))}
    settings = read_settings(cursor, tuple(options.values()), "a source")
    if not settings:
        message = "no option is set"
        raise cursor.wrong(message, "Write: ALTER SOURCES source SET (option = value, …);")
    cursor.ends()
    secrets = _secrets(cursor, settings, settings)
    given = _without(settings, secrets)
    return AlterSet(source, {field: each.value for field, each in given.items()}, secrets)


def _kind(cursor: StatementCursor, kinds: Mapping[str, Written]) -> Written:
    for kind in sorted(kinds.values(), key=lambda each: -len(each.NAME.split())):
        if cursor.takes(*kind.NAME.upper().split()):
            return kind
    words = " ".join(cursor.words()[:1])
    near = nearest(words, [kind.NAME for kind in kinds.values()])
    message = f"there is no kind of source {words}" if words else "the kind of source stands here"
    raise cursor.wrong(message, near or f"The kinds are {', '.join(kind.NAME for kind in kinds.values())}.")


def _misplaced(cursor: StatementCursor, kind: Written, what: str, *, has_settings: bool) -> UsageError:
    """Return the error for what stands where a clause or the end should be."""
    if has_settings:
        return cursor.wrong("nothing follows WITH (…)", "Put clauses before WITH, and all options into one WITH.")
    words = cursor.words()
    for option in _settings_of(kind):
        if words[: len(option.words)] == option.words:
            message = f"{option.setting} is an option, and stands in WITH"
            return cursor.wrong(message, f"Write: WITH ({option.setting} = {option.syntax.form})")
    return unknown_clause(cursor, f"this is no clause of {what}")


def _settings_of(kind: Written) -> Sequence[Option]:
    """Return the settings in WITH, and the one that allows secrets in clear where the kind has secrets."""
    settings = tuple(option for option in options_of(kind.WithOptions) if option.field != _ALLOW.field)
    clauses = options_of(kind.SqlOptions)
    has_secrets = any(isinstance(option.syntax, Secret) for option in (*settings, *clauses))
    return (*settings, _ALLOW) if has_secrets else settings


def _secrets(
    cursor: StatementCursor, given: Mapping[str, Given], settings: Mapping[str, Given]
) -> dict[str, SecretStr]:
    """Return the secrets in clear; refuse them where that was not allowed."""
    literal = {field: each for field, each in given.items() if isinstance(each.value, SecretStr)}
    allowed = _ALLOW.field in settings and settings[_ALLOW.field].value
    for each in literal.values():
        if not allowed:
            message = f"{each.option.setting} holds a secret in clear"
            raise cursor.wrong(message, _CLEAR, each.place)
    return {field: each.value for field, each in literal.items()}


def _without(given: Mapping[str, Given], secrets: Mapping[str, Any]) -> dict[str, Given]:
    return {field: each for field, each in given.items() if field not in secrets and field != _ALLOW.field}
