"""Values of Kafka options in SQL, and options that are given by name.

Options that are given by name are read into their model; unknown and unsupported ones are errors.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ValidationError

from penstock.errors import UsageError
from penstock.name_suggestions import nearest
from penstock.sql.syntax import values as syntax
from penstock.sql.syntax.option_parser import unsupported_option

__all__ = ["SecretText", "Word", "given_of", "read_options", "reject_unsupported"]


@dataclass(frozen=True)
class SecretText(syntax.Secret):
    """``'env:NAME'``: a reference, which the option stores as a `Secret`."""

    def write(self, value: Any) -> str:
        """Write the reference; a literal that was not stored yet is an error."""
        return syntax.written_text(value.reference)


class Word(enum.StrEnum):
    """An enum whose values are case-insensitive: ``SASL_SSL`` and ``sasl_ssl`` are the same."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        wanted = value.casefold() if isinstance(value, str) else None
        return next((word for word in cls if word.value.casefold() == wanted), None)


def given_of(options: BaseModel, group: type[BaseModel], but: Iterable[type[BaseModel]] = ()) -> list[str]:
    """Return the options of a group that are set, except those of the groups in `but`."""
    left_out = {name for inner in but for name in inner.model_fields}
    return [name for name in group.model_fields if name not in left_out and getattr(options, name) is not None]


_Options = TypeVar("_Options", bound=BaseModel)


def read_options(
    model: type[_Options], owner: str, given: Mapping[str, Any], unsupported: Mapping[str, tuple[str, str]]
) -> _Options:
    """Return the options; `unsupported` are options of other systems, each with reason and hint."""
    reject_unsupported(given, unsupported)
    for name in given:
        if name not in model.model_fields:
            message = f'unrecognized option "{name}" for {owner}'
            raise UsageError(message, nearest(name, model.model_fields, '"') or "See the reference of Kafka options.")
    try:
        return model.model_validate(dict(given))
    except ValidationError as invalid:
        first = invalid.errors(include_input=False, include_url=False, include_context=False)[0]
        what = f'value for option "{first["loc"][0]}"' if first["loc"] else f"options for {owner}"
        message = f"invalid {what}: {first['msg'][:1].lower()}{first['msg'][1:]}"
        raise UsageError(message, "See the reference of Kafka options.") from None


def reject_unsupported(given: Iterable[str], unsupported: Mapping[str, tuple[str, str]]) -> None:
    """Raise `UsageError` for an option of another system, with the reason why there is no such option here."""
    for name in given:
        if name in unsupported:
            why, hint = unsupported[name]
            raise UsageError(unsupported_option(name, why), hint)
