"""Values with other fields: copies of models that hold what they are told, or fail.

``model_copy(update=…)`` of pydantic takes any name, and keeps what is none of the model's fields where nobody looks. So
it is called here alone; a test sees to that.
"""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel

__all__ = ["with_fields"]

_Model = TypeVar("_Model", bound=BaseModel)


def with_fields(model: _Model, /, **values: Any) -> _Model:
    """Return a copy of a model with these values in fields of its; they are taken as they are, as if validated."""
    strangers = values.keys() - type(model).model_fields.keys()
    if strangers:
        message = f"{type(model).__name__} has no fields {', '.join(sorted(strangers))}"
        raise TypeError(message)
    return model.model_copy(update=values)
