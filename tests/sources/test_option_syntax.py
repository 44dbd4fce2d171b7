"""The SQL notation of a model's fields follows from their types; fields without one are rejected at once."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, ClassVar

import pytest
from pydantic import BaseModel, model_validator

from penstock.errors import UsageError
from penstock.sql.errors import SqlError
from penstock.sql.grammar import parse
from penstock.sql.syntax.options import Keyword, options_of
from penstock.sql.syntax.values import Secret, Size


class Login(BaseModel):
    """A model within a model, with a secret."""

    NAME: ClassVar[str] = "LOGIN"
    password: Annotated[str | None, Secret()] = None


class Clauses(BaseModel):
    """Required fields, and two that are mutually exclusive."""

    left: bool = False
    right: bool = False
    login: Login | None = None
    place: str

    @model_validator(mode="after")
    def _one_side(self) -> Clauses:
        if self.left and self.right:
            message = "it cannot be on both sides"
            raise UsageError(message, "Choose one.")
        return self


class Nothing(BaseModel):
    """No settings."""


class Sided:
    """A kind of source."""

    NAME: ClassVar[str] = "SIDED"
    SqlOptions: ClassVar[type[Clauses]] = Clauses
    WithOptions: ClassVar[type[Nothing]] = Nothing


def sql_error(clauses: str) -> SqlError:
    with pytest.raises(SqlError) as caught:
        parse(f"CREATE SOURCES s FROM SIDED {clauses}", {"SIDED": Sided})
    return caught.value


def test_keywords_come_from_the_name_or_an_annotation() -> None:
    class Model(BaseModel):
        ssl_ca_location: str = ""
        limit: Annotated[int, Size(), Keyword("NO MORE THAN")] = 0

    assert [(option.clause, option.form) for option in options_of(Model)] == [
        ("SSL CA LOCATION", "SSL CA LOCATION 'string'"),
        ("NO MORE THAN", "NO MORE THAN '16 MB'"),
    ]


def test_type_without_sql_notation_is_rejected() -> None:
    class Model(BaseModel):
        amount: Decimal

    with pytest.raises(TypeError, match="has no SQL notation"):
        options_of(Model)


def test_required_secret_is_rejected() -> None:
    class Model(BaseModel):
        password: Annotated[str, Secret()]

    with pytest.raises(TypeError, match="must have a default"):
        options_of(Model)


@pytest.mark.parametrize("clauses", ["LEFT RIGHT PLACE 'x'", "PLACE 'x' LEFT RIGHT", "LEFT PLACE 'x' RIGHT"])
def test_exclusive_clauses_are_reported_at_the_later_one(clauses: str) -> None:
    error = sql_error(clauses)
    assert "both sides" in error.message
    assert error.column - 1 == len("CREATE SOURCES s FROM SIDED ") + clauses.index("RIGHT") + len("RIGHT") + (
        1 if not clauses.endswith("RIGHT") else 0
    )


def test_missing_clause_is_reported_at_the_kind() -> None:
    error = sql_error("LEFT RIGHT")
    assert (error.column, error.hint) == (23, "Add PLACE 'string'.")


def test_a_secret_within_a_model_is_a_reference() -> None:
    error = sql_error("PLACE 'x' LOGIN LOGIN PASSWORD 'hunter2'")
    assert "PASSWORD contains a literal secret" in error.message
    assert "hunter2" not in str(error)
    assert parse("CREATE SOURCE s FROM SIDED PLACE 'x' LOGIN LOGIN PASSWORD 'env:X'", {"SIDED": Sided}) is not None
