"""Models of options, as SQL: the grammar of a kind of source is derived from the fields of its two models.

::

    class SqlOptions(BaseModel):                  class WithOptions(BaseModel):
        broker: str                 BROKER '…'        ssl_ca_location: str | None    ssl ca location = '…'
        format: Avro | Json         FORMAT AVRO …     two_phase: bool                two phase [= true]

A field is a clause of one or more words (`Keyword` says other ones), or a setting in WITH; its type, or a `Syntax` in
its metadata, says how the value is written. A field whose type is a model with a ``NAME``, or a choice of such, is that
name and the clauses of that model; a model without one is its clauses in parentheses. Only what differs from the
defaults is written.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Protocol, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from penstock.nearest import nearest
from penstock.sources.cursor import Cursor
from penstock.sources.option_reading import Option, read_clauses, unknown_clause, validated
from penstock.sources.syntax import (
    Choice,
    Duration,
    Flag,
    Listed,
    Mapped,
    Number,
    Secret,
    Syntax,
    Text,
)

__all__ = ["Keyword", "Written", "options_of", "written_clauses", "written_settings"]


class Written(Protocol):
    """A kind of source, as far as the grammar goes: its name behind FROM, and its two models of options."""

    @property
    def NAME(self) -> str:
        """Return the words behind FROM."""

    @property
    def SqlOptions(self) -> type[BaseModel]:
        """Return the model of the clauses."""

    @property
    def WithOptions(self) -> type[BaseModel]:
        """Return the model of the settings in WITH."""


@dataclass(frozen=True)
class Keyword:
    """In a field's metadata: the words of its clause, where they are not those of its name."""

    words: str
    one_of: str = ""
    """Of all fields with the same text here, a statement has one at most."""
    otherwise: str = ""
    """The words that say that it has none of them."""


@cache
def options_of(model: type[BaseModel]) -> tuple[Option, ...]:
    """Return how the fields of a model are written; a field whose type cannot be written is a `TypeError`."""
    return tuple(_option(name, info) for name, info in model.model_fields.items())


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
                return validated(cursor, model, options_of(model), given, _name_of(model), place)
        names = [_name_of(model) for model in self.models]
        near = nearest(" ".join(cursor.words()[:1]), names)
        message = "this is not among the choices"
        raise cursor.wrong(message, near or f"Choose {' or '.join(names)}.", place)

    def write(self, value: BaseModel) -> str:
        return " ".join([_name_of(type(value)), *written_clauses(value)])


@dataclass(frozen=True)
class _Block(Syntax):
    """``(TOPIC '…')``: the clauses of one model, in parentheses."""

    model: type[BaseModel]

    @property
    def form(self) -> str:
        return f"({' '.join(option.form for option in options_of(self.model))})"

    def read(self, cursor: Cursor) -> BaseModel:
        place = cursor.place()
        cursor.expects("(")
        options = options_of(self.model)
        given = read_clauses(cursor, options)
        if not cursor.takes(")"):
            raise unknown_clause(cursor, "this cannot stand here")
        return validated(cursor, self.model, options, given, self.form, place)

    def write(self, value: BaseModel) -> str:
        return f"({' '.join(written_clauses(value))})"


def _name_of(model: type[BaseModel]) -> str:
    return str(getattr(model, "NAME", ""))


def _form(model: type[BaseModel]) -> str:
    return " ".join([_name_of(model), *(f"[{option.form}]" for option in options_of(model))])


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


def _written_clause(option: Option, value: Any) -> str:
    return option.clause if value is True else f"{option.clause} {option.syntax.write(value)}"
