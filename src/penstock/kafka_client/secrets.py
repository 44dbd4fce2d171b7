"""A secret in an option: a reference, or a literal that stays sealed until it is stored.

::

    'env:NAME', 'file:PATH' ─▶ Secret, a reference ────────────────────────▶ catalog, SHOW CREATE, Spark
    'hunter2'  ─▶ Secret, sealed ── kept(keep): to a private file ────┘           └─▶ resolved() ─▶ only a client

A sealed literal exists only in the memory of this process. It has no text and no JSON, and cannot be pickled, so that
no message, log, catalog or plan contains it by accident: a literal that was not stored is an error, not a leak.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, NoReturn

from pydantic import GetCoreSchemaHandler, SecretStr
from pydantic_core import CoreSchema, core_schema

from penstock.errors import UsageError
from penstock.kafka_client.option_values import SecretText
from penstock.secret import check_reference, is_reference, resolve

__all__ = ["Keep", "Secret", "SecretOption"]

Keep = Callable[[str, str], str]
"""Stores the literal secret of an option, given the option's name, and returns the reference to it."""

_SEALED = "Secret(sealed)"


class Secret:
    """A reference to a secret, or a literal. Comparable and hashable."""

    __slots__ = ("_literal", "_reference")

    def __init__(self, given: str) -> None:
        self._reference = check_reference(given) if is_reference(given) else None
        self._literal = None if self._reference else _validated(given)

    @property
    def is_sealed(self) -> bool:
        """Whether it is a literal that was not stored yet."""
        return self._reference is None

    @property
    def reference(self) -> str:
        """The reference. A sealed secret has none."""
        if self._reference is None:
            _not_kept()
        return self._reference

    def kept(self, option: str, keep: Keep) -> Secret:
        """Return the secret as a reference; only `keep` receives the literal."""
        return self if self._literal is None else Secret(check_reference(keep(option, self._literal)))

    def resolved(self) -> str:
        """Return the secret in clear text. Call it only right before use."""
        return resolve(self._reference) if self._reference is not None else str(self._literal)

    def __repr__(self) -> str:
        return _SEALED if self._reference is None else f"Secret({self._reference!r})"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return (self._reference, self._literal) == (other._reference, other._literal)

    def __hash__(self) -> int:
        return hash((self._reference, self._literal))

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, _: dict[int, Any]) -> Secret:
        return self

    def __reduce__(self) -> tuple[type[Secret], tuple[str]]:
        """Pickle references only."""
        return Secret, (self.reference,)

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        """Validate from text; serialize to the reference, in JSON and in Python data."""
        return core_schema.no_info_plain_validator_function(
            _read, serialization=core_schema.plain_serializer_function_ser_schema(_written)
        )


SecretOption = Annotated[Secret | None, SecretText()]
"""A field that holds a secret, or None."""


def _read(given: Any) -> Secret:
    if isinstance(given, Secret):
        return given
    if isinstance(given, SecretStr):  # the SQL parser passes literals like this
        return Secret(given.get_secret_value())
    if not isinstance(given, str):
        message = "secret is not a string"
        raise ValueError(message)
    return Secret(given)


def _written(secret: Any) -> str:
    return str(secret.reference)


def _validated(literal: str) -> str:
    """Reject literals that look like references, or that do not fit in a file of one line."""
    if literal.startswith(("env:", "file:")):
        message = "invalid reference to a secret"
        raise UsageError(message, "Use env:NAME (letters, digits and underscores) or file:PATH.")
    if not literal or len(literal.splitlines()) != 1 or literal.splitlines()[0] != literal:
        message = "secret is empty or has more than one line"
        raise UsageError(message, "Specify the secret as a single line.")
    return literal


def _not_kept() -> NoReturn:
    message = "literal secret was not stored yet"
    raise UsageError(message, "Store it in a private file first (kept), or use a reference: env:NAME or file:PATH.")
