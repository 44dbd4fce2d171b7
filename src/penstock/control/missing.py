"""A file of statements, as ``penstock run FILE.sql`` takes it: what a home shall have; made is what it has not yet.

The file may be given at each start. It only describes: statements that change or remove something belong into
``penstock sql``, where somebody means them once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.control.obeying import described_source, make_source, parsed
from penstock.sql.excerpt import error_at
from penstock.sql.script import Piece, divided
from penstock.sql.statements import CreateSource

if TYPE_CHECKING:
    from penstock.control.home import Home

__all__ = ["make_missing"]


def make_missing(home: Home, script: str) -> list[str]:
    """Make the sources that a script describes and the home has not; return their names.

    All of it is read before anything is made. A source that is there, but described otherwise, is refused.
    """
    described = [(piece, _described(piece)) for piece in divided(script)]
    made = []
    for piece, statement in described:
        if statement.name not in home.names():
            made.append(make_source(home, statement))
        elif not statement.secrets and described_source(statement) != home.spec(statement.name):
            message = f"this home has a source {statement.name}, and it was described otherwise"
            remedy = (
                f"See SHOW CREATE SOURCES {statement.name}; for what it is. Change it with ALTER SOURCES, or drop it:"
                f" penstock drop {statement.name}"
            )
            raise error_at(piece.text, 0, message, remedy, piece.begins)
    return made


def _described(piece: Piece) -> CreateSource:
    statement = parsed(piece.text, piece.begins)
    if isinstance(statement, CreateSource):
        return statement
    message = "only CREATE SOURCES stands in a file that is run"
    raise error_at(piece.text, 0, message, "Use penstock sql -f FILE for other statements.", piece.begins)
