"""Copies of pydantic models with some fields replaced; an unknown field name is an error.

``model_copy(update=…)`` of pydantic accepts any name, and silently ignores one that is not a field of the model. So it
is called only here; a test enforces that.
"""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel

__all__ = ["with_fields"]

_Model = TypeVar("_Model", bound=BaseModel)


def with_fields(model: _Model, /, **values: Any) -> _Model:
    """Return a copy of a model with some fields replaced; the values are not validated."""
    strangers = values.keys() - type(model).model_fields.keys()
    if strangers:
        message = f"{type(model).__name__} has no fields {', '.join(sorted(strangers))}"
        raise TypeError(message)
    return model.model_copy(update=values)
