"""Reading options from a statement: clauses, settings in WITH, and what the models say of them.

A validator that raises does not say which field it was about. So the fields are validated in the order in which they
were given, one more each time, until it raises: the last one is where the error is shown.

A secret in clear has no place in a model. Whoever allows one takes it out before.
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
    """One field of a model, and how it is written."""

    field: str
    words: tuple[str, ...]
    syntax: Syntax
    info: FieldInfo
    one_of: str = ""
    otherwise: tuple[str, ...] = ()

    @property
    def clause(self) -> str:
        """The words of the clause, for people."""
        return " ".join(self.words)

    @property
    def setting(self) -> str:
        """The name in WITH, for people."""
        return self.clause.lower()

    @property
    def form(self) -> str:
        """The clause with its value, for people."""
        return self.clause if isinstance(self.syntax, Flag) else f"{self.clause} {self.syntax.form}"

    def is_default(self, model: BaseModel) -> bool:
        """Say whether a model has the default of this field."""
        return not self.info.is_required() and getattr(model, self.field) == self.info.get_default(
            call_default_factory=True, validated_data={}
        )


@dataclass(frozen=True)
class Given:
    """A value that a statement gives, and where it stands."""

    option: Option
    value: Any
    place: int


def read_clauses(cursor: Cursor, options: Sequence[Option]) -> dict[str, Given]:
    """Take clauses, in any order, for as long as they are among these options."""
    given: dict[str, Given] = {}
    taken: dict[str, str] = {}
    while (found := _next_clause(cursor, options)) is not None:
        option, words, place = found
        group = option.one_of or option.field
        if group in taken:
            first, second = taken[group], " ".join(words)
            what = f"{second} was given twice" if first == second else f"there are both {first} and {second}"
            raise cursor.wrong(what, "Give one of them." if first != second else "Give it once.", place)
        taken[group] = " ".join(words)
        if words == option.words:
            place = cursor.place()
            given[option.field] = Given(option, _clause_value(cursor, option), place)
    return given


def unknown_clause(cursor: Cursor, what: str) -> UsageError:
    """Return the error for a word that begins none of the clauses that were tried here."""
    known, words = cursor.tried(), cursor.words()
    for count in range(min(len(words), 4), 0, -1):
        given = " ".join(words[:count])
        near = _longer(given, known) or nearest(given, known)
        if near:
            return cursor.wrong(what, near)
    return cursor.wrong(what, f"These can stand here: {', '.join(known)}.")


def read_settings(
    cursor: Cursor, options: Sequence[Option], what: str, clauses: Sequence[Option] = ()
) -> dict[str, Given]:
    """Take ``(name = value, …)``; an unknown name is an error that suggests the nearest, also if it is a clause."""
    given: dict[str, Given] = {}
    cursor.expects("(")
    if cursor.takes(")"):
        return given
    while True:
        option, place = _setting(cursor, options, what, clauses)
        if option.field in given:
            message = f"{option.setting} was given twice"
            raise cursor.wrong(message, "Give it once.", place)
        value, place = _setting_value(cursor, option)
        given[option.field] = Given(option, value, place)
        if cursor.takes(")"):
            return given
        if not cursor.takes(","):
            either = ", or )"
            raise cursor.expected(either)


def validated(
    cursor: Cursor, model: type[_Model], options: Sequence[Option], given: Mapping[str, Given], what: str, place: int
) -> _Model:
    """Make the model; what it refuses is an error at the value that it refuses, or at `place` if one is missing."""
    for each in given.values():
        if isinstance(each.value, SecretStr):
            message = f"{each.option.setting} holds a secret in clear"
            raise cursor.wrong(message, f"Name where it is: {each.option.syntax.form}.", each.place)
    values = {field: each.value for field, each in given.items()}
    try:
        return model.model_validate(values)
    except UsageError as error:
        raise cursor.wrong(error.message, error.hint, _blamed(model, given, error, place)) from None
    except ValidationError as invalid:
        first = invalid.errors(include_input=False, include_url=False)[0]
        field = str(first["loc"][0]) if first["loc"] else ""
        known = {option.field: option for option in options}
        if first["type"] == "missing":
            option = known[field]
            message = f"{what} has no {option.clause}"
            raise cursor.wrong(message, f"Add {option.clause} {option.syntax.form}.", place) from None
        message = f"{known[field].setting if field in known else what}: {_lower(first['msg'])}"
        at = given[field].place if field in given else place
        raise cursor.wrong(message, "See the reference of its options.", at) from None


def _phrases(option: Option) -> list[tuple[str, ...]]:
    return [option.words, option.otherwise] if option.otherwise else [option.words]


def _next_clause(cursor: Cursor, options: Sequence[Option]) -> tuple[Option, tuple[str, ...], int] | None:
    """Take the words of the longest clause that comes next; return its option, its words and its place."""
    place = cursor.place()
    phrases = [(option, words) for option in options for words in _phrases(option)]
    for option, words in sorted(phrases, key=lambda each: -len(each[1])):
        if cursor.takes(*words):
            return option, words, place
    return None


def _clause_value(cursor: Cursor, option: Option) -> Any:
    """Take what stands behind the words of a clause; nothing needs to, where it is a flag."""
    if isinstance(option.syntax, Flag) and (cursor.words() or ("",))[0] not in ("TRUE", "FALSE", "ON", "OFF"):
        return True
    before = cursor.usage(f"{option.clause} {option.syntax.form}")
    value = option.syntax.read(cursor)
    cursor.usage(before)
    return value


def _setting(cursor: Cursor, options: Sequence[Option], what: str, clauses: Sequence[Option]) -> tuple[Option, int]:
    """Take the name of a setting: its words, however many."""
    by_words = {words: option for option in options for words in (option.words, ("_".join(option.words),))}
    place, words = cursor.place(), cursor.words()
    cursor.offers(*(option.setting for option in options))
    option = by_words.get(words)
    if option is None:
        given = " ".join(words).lower()
        message = f"there is no option {given} of {what}" if given else "the name of an option stands here"
        outside = next((f"{each.form} stands before WITH." for each in clauses if each.words == words), "")
        names = [option.setting for option in options]
        near = outside or nearest(given, names) or _longer(given, names)
        raise cursor.wrong(message, near or _listed(options), place)
    cursor.expects(*words)
    return option, place


def _setting_value(cursor: Cursor, option: Option) -> tuple[Any, int]:
    """Take ``= value``; the name alone means true, where it is a flag. Return the value and its place."""
    before = cursor.usage(f"{option.setting} = {option.syntax.form}")
    is_bare = isinstance(option.syntax, Flag) and not cursor.takes("=")
    if not isinstance(option.syntax, Flag):
        cursor.expects("=")
    place = cursor.place()
    value = True if is_bare else option.syntax.read(cursor)
    cursor.usage(before)
    return value, place


def _longer(given: str, known: Iterable[str]) -> str:
    """Suggest what begins with the words that were given."""
    longer = [phrase for phrase in known if given and phrase.startswith(f"{given} ")]
    return f"Did you mean {' or '.join(longer)}?" if longer else ""


def _listed(options: Iterable[Option]) -> str:
    names = ", ".join(sorted(option.setting for option in options))
    return f"The options are {names}." if names else "Leave WITH out: there are no options."


def _blamed(model: type[BaseModel], given: Mapping[str, Given], error: UsageError, place: int) -> int:
    """Return the place of the first value with which the model raises this; `place`, if it does so without any.

    Required fields come first: without them, it does not look at how fields go together.
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
