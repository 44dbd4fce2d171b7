"""A secret as an option holds it: a reference, or a literal that is sealed until somebody keeps it.

::

    'env:NAME', 'file:PATH' ─▶ Secret, a reference ────────────────────────▶ catalog, SHOW CREATE, Spark
    'hunter2'  ─▶ Secret, sealed ── kept(keep): into a private file ──┘           └─▶ resolved() ─▶ a client, alone

A sealed literal is in the memory of this process and nowhere else. It has no text and no JSON, and cannot be pickled,
so that no message, log, catalog or plan holds it by accident: forgetting to keep it is an error, not a leak.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, NoReturn

from pydantic import GetCoreSchemaHandler, SecretStr
from pydantic_core import CoreSchema, core_schema

from penstock.errors import UsageError
from penstock.secret import check_reference, is_reference, resolve
from penstock.sources.kafka.option_syntax import SecretText

__all__ = ["Keep", "Secret", "SecretOption"]

Keep = Callable[[str, str], str]
"""Takes the name of an option and its literal secret, and returns the reference under which it is found from now on."""

_SEALED = "Secret(sealed)"


class Secret:
    """Where a secret is, or one that was given in clear. Equal when they are the same, and hashable."""

    __slots__ = ("_literal", "_reference")

    def __init__(self, given: str) -> None:
        self._reference = check_reference(given) if is_reference(given) else None
        self._literal = None if self._reference else _sense(given)

    @property
    def is_sealed(self) -> bool:
        """Whether it is a literal that nobody has kept yet."""
        return self._reference is None

    @property
    def reference(self) -> str:
        """Where it is found. A sealed one has no such place."""
        if self._reference is None:
            _not_kept()
        return self._reference

    def kept(self, option: str, keep: Keep) -> Secret:
        """Return it as a reference; `keep` is handed a literal, and nobody else is."""
        return self if self._literal is None else Secret(check_reference(keep(option, self._literal)))

    def resolved(self) -> str:
        """Read it. Do this only right before it is used."""
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
        """Only a reference crosses to another process."""
        return Secret, (self.reference,)

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        """Validate from text; in JSON, and in plain Python data, it is its reference."""
        return core_schema.no_info_plain_validator_function(
            _read, serialization=core_schema.plain_serializer_function_ser_schema(_written)
        )


SecretOption = Annotated[Secret | None, SecretText()]
"""A field that holds a secret, or none."""


def _read(given: Any) -> Secret:
    if isinstance(given, Secret):
        return given
    if isinstance(given, SecretStr):  # as the grammar hands on a secret in clear
        return Secret(given.get_secret_value())
    if not isinstance(given, str):
        message = "it is not text"
        raise ValueError(message)
    return Secret(given)


def _written(secret: Any) -> str:
    return str(secret.reference)


def _sense(literal: str) -> str:
    """Refuse literals that are meant as references, or that a file of one line does not hold."""
    if literal.startswith(("env:", "file:")):
        message = "a reference to a secret cannot be read"
        raise UsageError(message, "Write env:NAME (letters, digits and underscores) or file:PATH.")
    if not literal or len(literal.splitlines()) != 1 or literal.splitlines()[0] != literal:
        message = "a secret is empty, or has more than one line"
        raise UsageError(message, "Give the one line that it is.")
    return literal


def _not_kept() -> NoReturn:
    message = "a secret that was given in clear has not been kept yet"
    raise UsageError(message, "Keep it in a private file first (kept), or name where it is: env:NAME or file:PATH.")
