"""Options as they were given, by name, made into the model of them; what cannot be is told in our own words."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from penstock.errors import UsageError

__all__ = ["read_options"]

_Options = TypeVar("_Options", bound=BaseModel)


def read_options(
    model: type[_Options], owner: str, given: Mapping[str, Any], refused: Mapping[str, tuple[str, str]]
) -> _Options:
    """Return the options; `refused` are those that are known elsewhere and not here, each with why and what instead."""
    for name in given:
        if name in refused:
            raise UsageError(*refused[name])
        if name not in model.model_fields:
            message = f"there is no option {name} of {owner}"
            raise UsageError(message, _nearest(name, model) or "See the reference of its options.")
    try:
        return model.model_validate(dict(given))
    except ValidationError as invalid:
        first = invalid.errors(include_input=False, include_url=False, include_context=False)[0]
        option = str(first["loc"][0]) if first["loc"] else owner
        message = f"the option {option}: {first['msg']}"
        raise UsageError(message, "See the reference of its options.") from None


def _nearest(wanted: str, model: type[BaseModel]) -> str:
    found = difflib.get_close_matches(wanted, list(model.model_fields), 1)
    return f"Did you mean {found[0]}?" if found else ""
