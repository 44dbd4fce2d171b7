"""Models of options, as SQL: the grammar of a kind of source is derived from the fields of its two models.

::

    class SqlOptions(BaseModel):                  class WithOptions(BaseModel):
        broker: str                 BROKER '…'        ssl_ca_location: str | None    ssl ca location = '…'
        format: Avro | Json         FORMAT AVRO …     two_phase: bool                two phase [= true]

A field is a clause of one or more words (`Keyword` says other ones), or a setting in WITH; its type, or a `Syntax` in
its metadata, says how the value is written. A field whose type is a model with a ``NAME``, or a choice of such, is that
name and the clauses of that model; a model without one is its clauses in parentheses. Only what differs from the
defaults is written.

A validator that raises does not say which field it was about. So the fields are validated in the order in which they were
given, one more each time, until it raises: the last one is where the error is shown.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Protocol, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from penstock.errors import UsageError
from penstock.sources.syntax import (
    Choice,
    Cursor,
    Duration,
    Flag,
    Listed,
    Mapped,
    Number,
    Secret,
    Syntax,
    Text,
    did_you_mean,
)

__all__ = [
    "Given",
    "Keyword",
    "Kind",
    "Option",
    "options_of",
    "read_clauses",
    "read_settings",
    "unknown_clause",
    "validated",
    "written_clauses",
    "written_settings",
]

_Model = TypeVar("_Model", bound=BaseModel)


class Kind(Protocol):
    """A kind of source, as far as the grammar goes: its name behind FROM, and its two models of options."""

    @property
    def NAME(self) -> str:  # noqa: N802 - a constant of the class
        """Return the words behind FROM."""

    @property
    def SqlOptions(self) -> type[BaseModel]:  # noqa: N802 - a type
        """Return the model of the clauses."""

    @property
    def WithOptions(self) -> type[BaseModel]:  # noqa: N802 - a type
        """Return the model of the settings in WITH."""


@dataclass(frozen=True)
class Keyword:
    """In a field's metadata: the words of its clause, where they are not those of its name."""

    words: str
    one_of: str = ""
    """Of all fields with the same text here, a statement has one at most."""
    otherwise: str = ""
    """The words that say that it has none of them."""


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


@cache
def options_of(model: type[BaseModel]) -> tuple[Option, ...]:
    """Return how the fields of a model are written; a field whose type cannot be written is a `TypeError`."""
    return tuple(_option(name, info) for name, info in model.model_fields.items())


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


def unknown_clause(cursor: Cursor, what: str, options: Sequence[Option], *others: str) -> UsageError:
    """Return the error for a word that begins none of the clauses that could stand here."""
    known = [*(" ".join(words) for option in options for words in _phrases(option)), *others]
    words = cursor.words()
    near = ""
    for count in range(min(len(words), 4), 0, -1):
        near = near or did_you_mean(" ".join(words[:count]), known)
    return cursor.wrong(what, near or f"These can stand here: {', '.join(known)}.")


def read_settings(cursor: Cursor, options: Sequence[Option], what: str) -> dict[str, Given]:
    """Take ``(name = value, …)``; an unknown name is an error that suggests the nearest."""
    given: dict[str, Given] = {}
    cursor.expects("(")
    if cursor.takes(")"):
        return given
    while True:
        option, place = _setting(cursor, options, what)
        if option.field in given:
            raise cursor.wrong(f"{option.setting} was given twice", "Give it once.", place)
        value, place = _setting_value(cursor, option)
        given[option.field] = Given(option, value, place)
        if not cursor.takes(","):
            cursor.expects(")")
            return given


def validated(cursor: Cursor, model: type[_Model], given: Mapping[str, Given], what: str, place: int) -> _Model:
    """Make the model; what it refuses is an error at the value that it refuses, or at `place` if one is missing."""
    values = {field: each.value for field, each in given.items()}
    try:
        return model.model_validate(values)
    except UsageError as error:
        raise cursor.wrong(error.message, error.remedy, _blamed(model, given, error, place)) from None
    except ValidationError as invalid:
        first = invalid.errors(include_input=False, include_url=False)[0]
        field = str(first["loc"][0]) if first["loc"] else ""
        known = {option.field: option for option in options_of(model)}
        if first["type"] == "missing":
            option = known[field]
            message = f"{what} has no {option.clause}"
            raise cursor.wrong(message, f"Add {option.clause} {option.syntax.form}.", place) from None
        message = f"{known[field].setting if field in known else what}: {_lower(first['msg'])}"
        at = given[field].place if field in given else place
        raise cursor.wrong(message, "See the reference of its options.", at) from None


def written_clauses(model: BaseModel) -> list[str]:
    """Write the clauses of what differs from the defaults."""
    options = options_of(type(model))
    given = [option for option in options if not option.is_default(model)]
    clauses = [_written_clause(option, getattr(model, option.field)) for option in given]
    groups = {option.one_of for option in given}
    unsaid = {option.otherwise for option in options if option.otherwise and option.one_of not in groups}
    return clauses + sorted(" ".join(words) for words in unsaid)


def written_settings(model: BaseModel) -> list[str]:
    """Write ``name = value`` for what differs from the defaults."""
    given = [option for option in options_of(type(model)) if not option.is_default(model)]
    return [f"{option.setting} = {option.syntax.write(getattr(model, option.field))}" for option in given]


# -- models as values --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Variants(Syntax):
    """``AVRO USING …``: one of some models, by its NAME, and its clauses."""

    models: tuple[type[BaseModel], ...]

    @property
    def form(self) -> str:
        return " | ".join(_form(model) for model in self.models)

    def read(self, cursor: Cursor) -> BaseModel:
        place = cursor.place()
        for model in sorted(self.models, key=lambda each: -len(_name_of(each).split())):
            if cursor.takes(*_name_of(model).split()):
                given = read_clauses(cursor, options_of(model))
                return validated(cursor, model, given, _name_of(model), place)
        names = [_name_of(model) for model in self.models]
        near = did_you_mean(" ".join(cursor.words()[:1]), names)
        raise cursor.wrong("this is not among the choices", near or f"Choose {' or '.join(names)}.", place)

    def write(self, value: BaseModel) -> str:
        return " ".join([_name_of(type(value)), *written_clauses(value)])


@dataclass(frozen=True)
class _Block(Syntax):
    """``(TOPIC '…')``: the clauses of one model, in parentheses."""

    model: type[BaseModel]

    @property
    def form(self) -> str:
        return f"({' '.join(_clause_form(option) for option in options_of(self.model))})"

    def read(self, cursor: Cursor) -> BaseModel:
        place = cursor.place()
        cursor.expects("(")
        options = options_of(self.model)
        given = read_clauses(cursor, options)
        if not cursor.takes(")"):
            raise unknown_clause(cursor, "this cannot stand here", options, ")")
        return validated(cursor, self.model, given, self.form, place)

    def write(self, value: BaseModel) -> str:
        return f"({' '.join(written_clauses(value))})"


def _name_of(model: type[BaseModel]) -> str:
    return str(getattr(model, "NAME", ""))


def _form(model: type[BaseModel]) -> str:
    return " ".join([_name_of(model), *(f"[{_clause_form(option)}]" for option in options_of(model))])


def _clause_form(option: Option) -> str:
    return option.clause if isinstance(option.syntax, Flag) else f"{option.clause} {option.syntax.form}"


# -- fields ------------------------------------------------------------------------------------------------------------


def _option(name: str, info: FieldInfo) -> Option:
    words = tuple(name.upper().split("_"))
    keyword = next((each for each in info.metadata if isinstance(each, Keyword)), Keyword(" ".join(words)))
    marked = next((each for each in info.metadata if isinstance(each, Syntax)), None)
    syntax = marked or _derived(info.annotation)
    if isinstance(syntax, Secret) and info.is_required():
        message = f"{name} is a secret, which may be given apart from the options: let it have a default"
        raise TypeError(message)
    otherwise = tuple(keyword.otherwise.split())
    return Option(name, tuple(keyword.words.split()), syntax, info, keyword.one_of, otherwise)


def _derived(kind: Any) -> Syntax:
    """Return how values of a type are written."""
    origin, inner = get_origin(kind), [each for each in get_args(kind) if each not in (NoneType, Ellipsis)]
    if origin in (Union, UnionType):
        models = tuple(each for each in inner if isinstance(each, type) and issubclass(each, BaseModel))
        return _Variants(models) if len(models) == len(inner) > 1 else _derived(inner[0])
    if origin is Literal:
        return Choice(tuple(map(str, inner)))
    if origin in (tuple, list, frozenset):
        return Listed(_derived(inner[0]))
    if origin is dict:
        return Mapped(_derived(inner[0]), _derived(inner[1]))
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return _Variants((kind,)) if _name_of(kind) else _Block(kind)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return Choice(tuple(str(each.value) for each in kind))
    plain: dict[Any, Syntax] = {
        bool: Flag(),
        int: Number(whole=True),
        float: Number(),
        str: Text(),
        timedelta: Duration(),
    }
    if kind not in plain:
        message = f"there is no way to write {kind} in SQL: mark the field with a Syntax"
        raise TypeError(message)
    return plain[kind]


# -- clauses and settings ----------------------------------------------------------------------------------------------


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


def _written_clause(option: Option, value: Any) -> str:
    return option.clause if value is True else f"{option.clause} {option.syntax.write(value)}"


def _setting(cursor: Cursor, options: Sequence[Option], what: str) -> tuple[Option, int]:
    """Take the name of a setting: its words, however many."""
    by_words = {words: option for option in options for words in (option.words, ("_".join(option.words),))}
    place, words = cursor.place(), cursor.words()
    cursor.offers(*(option.setting for option in options))
    option = by_words.get(words)
    if option is None:
        given = " ".join(words).lower()
        message = f"there is no option {given} of {what}" if given else "the name of an option stands here"
        near = did_you_mean(given, [option.setting for option in options])
        raise cursor.wrong(message, near or f"Its options are {_listed(options)}.", place)
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


def _listed(options: Iterable[Option]) -> str:
    return ", ".join(sorted(option.setting for option in options))


def _blamed(model: type[BaseModel], given: Mapping[str, Given], error: UsageError, place: int) -> int:
    """Return the place of the first value with which the model raises this; `place`, if it does so without any."""
    so_far: dict[str, Any] = {}
    for each in (None, *given.values()):
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
