"""Options of a Kafka source by name: reading them, unknown and unsupported ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from penstock.errors import UsageError
from penstock.nearest import nearest
from penstock.sources.option_parser import unsupported_option

__all__ = ["UNSUPPORTED", "given_of", "read_options", "reject_unsupported"]

UNSUPPORTED: dict[str, tuple[str, str]] = {
    "cache": ("messages are always stored in the tables of the source", "Remove the option."),
    "enable_auto_commit": (
        "a source resumes from the position stored with its output, and Spark's Kafka reader commits no offsets",
        "Remove the option. Run penstock status to see the progress of a source.",
    ),
    "ignore_source_keys": (
        "whether a table has a key depends on ENVELOPE alone",
        "Remove the option. Use ENVELOPE NONE for a table without a key.",
    ),
}
"""Options of other systems that a Kafka source does not have: the reason and the hint."""


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
