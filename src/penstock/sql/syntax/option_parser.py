"""Read options from a statement: clauses, settings in WITH, and their validation by pydantic models.

A model validator that raises does not report the field at fault. To locate the error, the fields are validated in the
order in which they were given, adding one at a time, until the same error is raised: it is reported at the last one.

Models never contain a literal secret. If a statement allows one, the caller removes it before validation.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic.fields import FieldInfo

from penstock.errors import UsageError
from penstock.name_suggestions import nearest
from penstock.sql.syntax.values import Cursor, Flag, Syntax, alternatives

__all__ = [
    "Given",
    "Option",
    "Settings",
    "in_sql",
    "located",
    "longer",
    "read_clauses",
    "read_settings",
    "unknown_clause",
    "unsupported_option",
    "validated",
]

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
    """A value in a statement, its offset, and the option or clause as messages name it."""

    option: Option
    value: Any
    place: int
    label: str


def read_clauses(cursor: Cursor, options: Sequence[Option]) -> dict[str, Given]:
    """Consume clauses of these options, in any order."""
    given: dict[str, Given] = {}
    taken: dict[str, str] = {}
    while (found := _next_clause(cursor, options)) is not None:
        option, words, place = found
        group = option.one_of or option.field
        if group in taken:
            first, second = taken[group], " ".join(words)
            again = f"{second} specified more than once"
            what = again if first == second else f"{first} and {second} are mutually exclusive"
            raise cursor.error(what, "Use one of them." if first != second else "Specify it once.", place)
        taken[group] = " ".join(words)
        if words == option.words:
            place = cursor.place()
            given[option.field] = Given(option, _clause_value(cursor, option), place, option.clause)
    return given


def unknown_clause(cursor: Cursor) -> UsageError:
    """Return the error for words that begin none of the clauses tried at this token."""
    words, known = cursor.words(), [phrase for phrase in cursor.tried() if phrase[0].isalpha()]
    for count in range(min(len(words), 4), 0, -1):
        given = " ".join(words[:count])
        near = longer(given, known) or nearest(given, known)
        if near:
            return cursor.unmatched(known, near)
    return cursor.unmatched(known, f"Expected {alternatives(known)}.")


@dataclass(frozen=True)
class Settings:
    """The options that WITH or SET accepts; for any other name, what the error says."""

    options: Sequence[Option]
    of: str
    """The kind of source, like ``a KAFKA source``."""
    clauses: Sequence[Option] = ()
    """Options that are written as clauses before WITH."""
    unsupported: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Options of other systems, by name with underscores: the reason why there is no such option, and the hint."""


def read_settings(cursor: Cursor, settings: Settings) -> dict[str, Given]:
    """Consume ``(name = value, …)``; for an unknown name, raise an error that suggests the nearest option or clause."""
    given: dict[str, Given] = {}
    cursor.expect("(")
    if cursor.accept(")"):
        return given
    while True:
        option, place = _setting(cursor, settings)
        label = f'option "{option.setting}"'
        if option.field in given:
            message = f"{label} specified more than once"
            raise cursor.error(message, "Specify it once.", place)
        value, place = _setting_value(cursor, option, label)
        given[option.field] = Given(option, value, place, label)
        if cursor.accept(")"):
            return given
        if not cursor.accept(","):
            either = '"," or ")"'
            raise cursor.expected(either)


def validated(
    cursor: Cursor,
    model: type[_Model],
    options: Sequence[Option],
    given: Mapping[str, Given],
    what: str,
    place: int,
    others: Collection[str] = (),
) -> _Model:
    """Return the model; report a validation error at the invalid value, or at `place` if a value is missing.

    `others` are fields of another model whose names messages of this model contain.
    """
    for each in given.values():
        if isinstance(each.value, SecretStr):
            message = f"{each.label} contains a literal secret"
            raise cursor.error(message, f"Use a reference: {each.option.syntax.form}.", each.place)
    values = {field: each.value for field, each in given.items()}
    try:
        return model.model_validate(values)
    except UsageError as error:
        at = place if error.message.startswith("missing ") else _error_place(model, given, error, place)
        raise located(cursor, error, {*model.model_fields, *others}, at) from None
    except ValidationError as invalid:
        first = invalid.errors(include_input=False, include_url=False)[0]
        name = str(first["loc"][0]) if first["loc"] else ""
        known = {option.field: option for option in options}
        if first["type"] == "missing":
            option = known[name]
            message = f"missing {option.clause} clause for {what}"
            raise cursor.error(message, f"Add {option.clause} {option.syntax.form}.", place) from None
        raise _invalid(cursor, given.get(name), what, first["type"], first["msg"], place) from None


def located(cursor: Cursor, error: UsageError, fields: Container[str], place: int) -> UsageError:
    """Return an error of a model as one of the statement: at an offset, with the names of options as SQL has them."""
    return cursor.error(in_sql(error.message, fields), in_sql(error.hint, fields), place)


def in_sql(text: str, fields: Container[str]) -> str:
    """Return a message of a model with the quoted names of its fields as SQL has them: ``"on_error"`` is "on error"."""
    return _QUOTED.sub(lambda name: name[0].replace("_", " ") if name[1] in fields else name[0], text)


def unsupported_option(name: str, why: str) -> str:
    """Return the message for an option of another system."""
    return f'option "{name}" is not supported: {why}'


_QUOTED = re.compile(r'"(\w+)"')
_LIMITS = {"gt": "greater than", "ge": "at least", "lt": "less than", "le": "at most"}
_BOUNDS = ("greater_than", "greater_than_equal", "less_than", "less_than_equal")


def _invalid(cursor: Cursor, given: Given | None, what: str, kind: str, problem: str, place: int) -> UsageError:
    """Return the error for a value that a constraint of its field rejects."""
    problem = problem.removeprefix("Value error, ").replace("String should", "The value must", 1)
    if given is None:
        message = f"invalid options for {what}: {problem[:1].lower()}{problem[1:]}"
        return cursor.error(message, "See the source options reference.", place)
    before = cursor.reading(given.label)
    report, hint = cursor.invalid, f"{problem[:1].upper()}{problem[1:]}."
    if kind in _BOUNDS:
        report, hint = cursor.out_of_bounds, _bounds(given.option.info)
    error = report(_number_text(given.value), hint, given.place)
    cursor.reading(before)
    return error


def _bounds(info: FieldInfo) -> str:
    """Describe the valid range of a number."""
    limits = {name: getattr(each, name) for name in _LIMITS for each in info.metadata if hasattr(each, name)}
    texts = {name: _number_text(limit) for name, limit in limits.items()}
    if texts.keys() == {"ge", "le"}:
        return f"Valid values are between {texts['ge']} and {texts['le']}."
    return f"Valid values are {' and '.join(f'{_LIMITS[name]} {text}' for name, text in texts.items())}."


def _number_text(value: Any) -> str:
    return f"{value:.15g}" if isinstance(value, float) else str(value)


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
    return _value(cursor, option, f"{option.clause} {option.syntax.form}", option.clause)


def _value(cursor: Cursor, option: Option, usage: str, label: str) -> Any:
    """Consume the value of a clause or a setting; errors contain its usage and its label."""
    before = cursor.usage(usage), cursor.reading(label)
    value = option.syntax.read(cursor)
    cursor.usage(before[0])
    cursor.reading(before[1])
    return value


def _setting(cursor: Cursor, settings: Settings) -> tuple[Option, int]:
    """Consume the name of a setting, of one or more words."""
    options = settings.options
    by_words = {words: option for option in options for words in (option.words, ("_".join(option.words),))}
    place, words = cursor.place(), cursor.words()
    cursor.offer(*(option.setting for option in options))
    option = by_words.get(words)
    if option is None:
        raise _unknown_setting(cursor, settings, words)
    cursor.expect(*words)
    return option, place


def _unknown_setting(cursor: Cursor, settings: Settings, words: tuple[str, ...]) -> UsageError:
    given, names = " ".join(words).lower(), [option.setting for option in settings.options]
    if not given:
        return cursor.expected("an option name", _list_options(settings.options))
    if reason := settings.unsupported.get(given.replace(" ", "_")):
        return cursor.error(unsupported_option(given, reason[0]), reason[1])
    clause = next((each.form for each in settings.clauses if each.words == words), "")
    near = nearest(given, names, '"') or longer(given, names, '"') or _list_options(settings.options)
    hint = f"Write it as a clause before WITH: {clause}" if clause else near
    return cursor.error(f'unrecognized option "{given}" for {settings.of}', hint)


def _setting_value(cursor: Cursor, option: Option, label: str) -> tuple[Any, int]:
    """Consume ``= value``, which is optional for a flag; return the value and its offset."""
    usage = f"{option.setting} = {option.syntax.form}"
    before = cursor.usage(usage)
    is_bare = isinstance(option.syntax, Flag) and not cursor.accept("=")
    if not isinstance(option.syntax, Flag):
        cursor.expect("=")
    cursor.usage(before)
    place = cursor.place()
    return True if is_bare else _value(cursor, option, usage, label), place


def longer(given: str, known: Iterable[str], quote: str = "") -> str:
    """Suggest the phrases that begin with the given words."""
    found = [f"{quote}{phrase}{quote}" for phrase in known if given and phrase.startswith(f"{given} ")]
    if len(found) > 1:
        return f"Expected {alternatives(found)}."
    return f"Did you mean {found[0]}?" if found else ""


def _list_options(options: Iterable[Option]) -> str:
    names = ", ".join(sorted(option.setting for option in options))
    return f"Valid options are: {names}." if names else "Remove WITH: there are no options."


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
