"""Options of a Kafka source by name: reading them, unknown and unsupported ones."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from penstock.errors import UsageError

__all__ = ["UNSUPPORTED", "given_of", "read_options"]

UNSUPPORTED: dict[str, tuple[str, str]] = {
    "cache": (
        "unsupported option cache of a Kafka source: messages are always stored in its tables",
        "Remove the option.",
    ),
    "enable_auto_commit": (
        "unsupported option enable_auto_commit of a Kafka source: it resumes from the position stored with its "
        "output, and Spark's Kafka reader commits no offsets",
        "Remove the option. Run penstock status to see the progress of a source.",
    ),
    "ignore_source_keys": (
        "unsupported option ignore_source_keys of a Kafka source: whether a table has a key depends on ENVELOPE alone",
        "Remove the option. Use ENVELOPE NONE for a table without a key.",
    ),
}
"""Options of other systems that a Kafka source does not have: the message and the hint."""


def given_of(options: BaseModel, group: type[BaseModel], but: Iterable[type[BaseModel]] = ()) -> list[str]:
    """Return the options of a group that are set, except those of the groups in `but`."""
    left_out = {name for inner in but for name in inner.model_fields}
    return [name for name in group.model_fields if name not in left_out and getattr(options, name) is not None]


_Options = TypeVar("_Options", bound=BaseModel)


def read_options(
    model: type[_Options], owner: str, given: Mapping[str, Any], unsupported: Mapping[str, tuple[str, str]]
) -> _Options:
    """Return the options; `unsupported` are options of other systems, each with message and hint."""
    for name in given:
        if name in unsupported:
            raise UsageError(*unsupported[name])
        if name not in model.model_fields:
            message = f"unknown option {name} of {owner}"
            raise UsageError(message, _nearest(name, model) or "See the reference of Kafka options.")
    try:
        return model.model_validate(dict(given))
    except ValidationError as invalid:
        first = invalid.errors(include_input=False, include_url=False, include_context=False)[0]
        option = str(first["loc"][0]) if first["loc"] else owner
        message = f"invalid option {option}: {first['msg']}"
        raise UsageError(message, "See the reference of Kafka options.") from None


def _nearest(wanted: str, model: type[BaseModel]) -> str:
    found = difflib.get_close_matches(wanted, list(model.model_fields), 1)
    return f"Did you mean {found[0]}?" if found else ""
