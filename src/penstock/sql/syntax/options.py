"""The SQL grammar of a kind of source, derived from the fields of its two option models.

::

    class SqlOptions(BaseModel):                  class WithOptions(BaseModel):
        broker: str                 BROKER '…'        ssl_ca_location: str | None    ssl ca location = '…'
        format: Avro | Json         FORMAT AVRO …     two_phase: bool                two phase [= true]

A field is a clause of one or more words (by default those of its name; `Keyword` sets others), or a setting in WITH.
Its type, or a `Syntax` in its metadata, determines the notation of the value. A field whose type is a model with a
``NAME``, or a union of such models, is written as that name and the clauses of that model; a model without a ``NAME``
is written as its clauses in parentheses. Writing omits fields that have their defaults.
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

from penstock.name_suggestions import nearest
from penstock.sql.syntax.option_parser import Option, read_clauses, unknown_clause, validated
from penstock.sql.syntax.values import (
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
    alternatives,
)

__all__ = ["Keyword", "Written", "options_of", "written_clauses", "written_settings"]


class Written(Protocol):
    """A kind of source, as the grammar sees it: its name after FROM, and its two option models."""

    @property
    def NAME(self) -> str:
        """Return the words after FROM."""

    @property
    def SqlOptions(self) -> type[BaseModel]:
        """Return the model of the clauses."""

    @property
    def WithOptions(self) -> type[BaseModel]:
        """Return the model of the settings in WITH."""


@dataclass(frozen=True)
class Keyword:
    """In a field's metadata: the words of its clause, if they differ from its name."""

    words: str
    one_of: str = ""
    """A group of fields: a statement may have at most one of them."""
    otherwise: str = ""
    """The clause that states explicitly that no field of the group is given."""


@cache
def options_of(model: type[BaseModel]) -> tuple[Option, ...]:
    """Return the notation of each field of a model; raise `TypeError` for a type without a notation."""
    return tuple(_option(name, info) for name, info in model.model_fields.items())


def written_clauses(model: BaseModel) -> list[str]:
    """Write the clauses of the fields that differ from their defaults."""
    options = options_of(type(model))
    given = [option for option in options if not option.is_default(model)]
    clauses = [_written_clause(option, getattr(model, option.field)) for option in given]
    groups = {option.one_of for option in given}
    explicit = {option.otherwise for option in options if option.otherwise and option.one_of not in groups}
    return clauses + sorted(" ".join(words) for words in explicit)


def written_settings(model: BaseModel) -> list[str]:
    """Write ``name = value`` for the fields that differ from their defaults."""
    given = [option for option in options_of(type(model)) if not option.is_default(model)]
    return [f"{option.setting} = {option.syntax.write(getattr(model, option.field))}" for option in given]


# -- models as values --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Variants(Syntax):
    """``AVRO USING …``: one of several models, written as its NAME and its clauses."""

    models: tuple[type[BaseModel], ...]

    @property
    def form(self) -> str:
        return alternatives(_form(model) for model in self.models)

    def read(self, cursor: Cursor) -> BaseModel:
        place = cursor.place()
        for model in sorted(self.models, key=lambda each: -len(_name_of(each).split())):
            if cursor.accept(*_name_of(model).split()):
                given = read_clauses(cursor, options_of(model))
                return validated(cursor, model, options_of(model), given, _name_of(model), place)
        names = [_name_of(model) for model in self.models]
        near = nearest(" ".join(cursor.words()[:1]), names)
        raise cursor.expected(hint=near or f"Expected {alternatives(names)}.")

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
        cursor.expect("(")
        options = options_of(self.model)
        given = read_clauses(cursor, options)
        if not cursor.accept(")"):
            raise unknown_clause(cursor) if cursor.words() else cursor.expected('")"')
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
    syntax = marked or _derive_syntax(info.annotation)
    if isinstance(syntax, Secret) and info.is_required():
        message = f"the secret field {name} must have a default: a literal secret is kept apart from the options"
        raise TypeError(message)
    otherwise = tuple(keyword.otherwise.split())
    return Option(name, tuple(keyword.words.split()), syntax, info, keyword.one_of, otherwise)


def _derive_syntax(kind: Any) -> Syntax:
    """Return the syntax for values of a type."""
    origin, inner = get_origin(kind), [each for each in get_args(kind) if each not in (NoneType, Ellipsis)]
    if origin in (Union, UnionType):
        models = tuple(each for each in inner if isinstance(each, type) and issubclass(each, BaseModel))
        return _Variants(models) if len(models) == len(inner) > 1 else _derive_syntax(inner[0])
    if origin is Literal:
        return Choice(tuple(map(str, inner)))
    if origin in (tuple, list, frozenset):
        return Listed(_derive_syntax(inner[0]))
    if origin is dict:
        return Mapped(_derive_syntax(inner[0]), _derive_syntax(inner[1]))
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
        message = f"type {kind} has no SQL notation: add a Syntax to the field's metadata"
        raise TypeError(message)
    return plain[kind]


def _written_clause(option: Option, value: Any) -> str:
    return option.clause if value is True else f"{option.clause} {option.syntax.write(value)}"
