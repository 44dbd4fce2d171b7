"""Read options from a statement: clauses, settings in WITH, and their validation by pydantic models.

A model validator that raises does not report the field at fault. To locate the error, the fields are validated in the
order in which they were given, adding one at a time, until the same error is raised: it is reported at the last one.

Models never contain a literal secret. If a statement allows one, the caller removes it before validation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic.fields import FieldInfo

from penstock.errors import UsageError
from penstock.nearest import nearest
from penstock.sources.cursor import Cursor
from penstock.sources.syntax import Flag, Syntax

__all__ = ["Given", "Option", "read_clauses", "read_settings", "unknown_clause", "validated"]

_Model = TypeVar("_Model", bound=BaseModel)


@dataclass(frozen=True)
class Option:
    """One field of a model, and its notation in SQL."""

    field: str
    words: tuple[str, ...]
    syntax: Syntax
    info: FieldInfo
    one_of: str = ""
    otherwise: tuple[str, ...] = ()

    @property
    def clause(self) -> str:
        """The words of the clause, for messages."""
        return " ".join(self.words)

    @property
    def setting(self) -> str:
        """The name in WITH, for messages."""
        return self.clause.lower()

    @property
    def form(self) -> str:
        """The clause with its value, for messages."""
        return self.clause if isinstance(self.syntax, Flag) else f"{self.clause} {self.syntax.form}"

    def is_default(self, model: BaseModel) -> bool:
        """Return whether this field has its default in a model."""
        return not self.info.is_required() and getattr(model, self.field) == self.info.get_default(
            call_default_factory=True, validated_data={}
        )


@dataclass(frozen=True)
class Given:
    """A value in a statement, and its offset."""

    option: Option
    value: Any
    place: int


def read_clauses(cursor: Cursor, options: Sequence[Option]) -> dict[str, Given]:
    """Consume clauses of these options, in any order."""
    given: dict[str, Given] = {}
    taken: dict[str, str] = {}
    while (found := _next_clause(cursor, options)) is not None:
        option, words, place = found
        group = option.one_of or option.field
        if group in taken:
            first, second = taken[group], " ".join(words)
            what = f"{second} specified twice" if first == second else f"{first} and {second} are mutually exclusive"
            raise cursor.error(what, "Use one of them." if first != second else "Specify it once.", place)
        taken[group] = " ".join(words)
        if words == option.words:
            place = cursor.place()
            given[option.field] = Given(option, _clause_value(cursor, option), place)
    return given


def unknown_clause(cursor: Cursor, what: str) -> UsageError:
    """Return the error for words that begin none of the clauses tried at this token."""
    known, words = cursor.tried(), cursor.words()
    for count in range(min(len(words), 4), 0, -1):
        given = " ".join(words[:count])
        near = _longer(given, known) or nearest(given, known)
        if near:
            return cursor.error(what, near)
    return cursor.error(what, f"Expected one of: {', '.join(known)}.")


def read_settings(
    cursor: Cursor, options: Sequence[Option], what: str, clauses: Sequence[Option] = ()
) -> dict[str, Given]:
    """Consume ``(name = value, …)``; for an unknown name, raise an error that suggests the nearest option or clause."""
    given: dict[str, Given] = {}
    cursor.expect("(")
    if cursor.accept(")"):
        return given
    while True:
        option, place = _setting(cursor, options, what, clauses)
        if option.field in given:
            message = f'option "{option.setting}" specified twice'
            raise cursor.error(message, "Specify it once.", place)
        value, place = _setting_value(cursor, option)
        given[option.field] = Given(option, value, place)
        if cursor.accept(")"):
            return given
        if not cursor.accept(","):
            either = '"," or ")"'
            raise cursor.expected(either)


def validated(
    cursor: Cursor, model: type[_Model], options: Sequence[Option], given: Mapping[str, Given], what: str, place: int
) -> _Model:
    """Return the model; report a validation error at the invalid value, or at `place` if a value is missing."""
    for each in given.values():
        if isinstance(each.value, SecretStr):
            message = f'"{each.option.setting}" contains a literal secret'
            raise cursor.error(message, f"Use a reference: {each.option.syntax.form}.", each.place)
    values = {field: each.value for field, each in given.items()}
    try:
        return model.model_validate(values)
    except UsageError as error:
        raise cursor.error(error.message, error.hint, _error_place(model, given, error, place)) from None
    except ValidationError as invalid:
        first = invalid.errors(include_input=False, include_url=False)[0]
        field = str(first["loc"][0]) if first["loc"] else ""
        known = {option.field: option for option in options}
        if first["type"] == "missing":
            option = known[field]
            message = f"missing {option.clause} clause for {what}"
            raise cursor.error(message, f"Add {option.clause} {option.syntax.form}.", place) from None
        message = f"invalid value for {known[field].setting if field in known else what}: {_lower(first['msg'])}"
        at = given[field].place if field in given else place
        raise cursor.error(message, "See the source options reference.", at) from None


def _phrases(option: Option) -> list[tuple[str, ...]]:
    return [option.words, option.otherwise] if option.otherwise else [option.words]


def _next_clause(cursor: Cursor, options: Sequence[Option]) -> tuple[Option, tuple[str, ...], int] | None:
    """Consume the words of the longest clause that comes next; return its option, its words and its offset."""
    place = cursor.place()
    phrases = [(option, words) for option in options for words in _phrases(option)]
    for option, words in sorted(phrases, key=lambda each: -len(each[1])):
        if cursor.accept(*words):
            return option, words, place
    return None


def _clause_value(cursor: Cursor, option: Option) -> Any:
    """Consume the value of a clause, which is optional for a flag."""
    if isinstance(option.syntax, Flag) and (cursor.words() or ("",))[0] not in ("TRUE", "FALSE", "ON", "OFF"):
        return True
    before = cursor.usage(f"{option.clause} {option.syntax.form}")
    value = option.syntax.read(cursor)
    cursor.usage(before)
    return value


def _setting(cursor: Cursor, options: Sequence[Option], what: str, clauses: Sequence[Option]) -> tuple[Option, int]:
    """Consume the name of a setting, of one or more words."""
    by_words = {words: option for option in options for words in (option.words, ("_".join(option.words),))}
    place, words = cursor.place(), cursor.words()
    cursor.offer(*(option.setting for option in options))
    option = by_words.get(words)
    if option is None:
        given = " ".join(words).lower()
        message = f'unrecognized option "{given}" for {what}' if given else "missing option name"
        outside = next(
            (f"Write it as a clause before WITH: {each.form}" for each in clauses if each.words == words), ""
        )
        names = [option.setting for option in options]
        near = outside or nearest(given, names) or _longer(given, names)
        raise cursor.error(message, near or _list_options(options), place)
    cursor.expect(*words)
    return option, place


def _setting_value(cursor: Cursor, option: Option) -> tuple[Any, int]:
    """Consume ``= value``, which is optional for a flag; return the value and its offset."""
    before = cursor.usage(f"{option.setting} = {option.syntax.form}")
    is_bare = isinstance(option.syntax, Flag) and not cursor.accept("=")
    if not isinstance(option.syntax, Flag):
        cursor.expect("=")
    place = cursor.place()
    value = True if is_bare else option.syntax.read(cursor)
    cursor.usage(before)
    return value, place


def _longer(given: str, known: Iterable[str]) -> str:
    """Suggest the phrases that begin with the given words."""
    longer = [phrase for phrase in known if given and phrase.startswith(f"{given} ")]
    return f"Did you mean {' or '.join(longer)}?" if longer else ""


def _list_options(options: Iterable[Option]) -> str:
    names = ", ".join(sorted(option.setting for option in options))
    return f"The options are {names}." if names else "Remove WITH: there are no options."


def _error_place(model: type[BaseModel], given: Mapping[str, Given], error: UsageError, place: int) -> int:
    """Return the offset of the first value with which the model raises this error; `place` if it needs no value.

    Required fields come first: without them, the model does not validate fields together.
    """
    so_far: dict[str, Any] = {}
    for each in (None, *sorted(given.values(), key=lambda each: not each.option.info.is_required())):
        if each is not None:
            so_far[each.option.field] = each.value
            place = each.place
        try:
            model.model_validate(so_far)
        except UsageError as raised:
            if raised.message == error.message:
                break
        except ValidationError:
            continue
    return place


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]
