"""What a refused connection means: worth another try, or not before somebody acts, and then what.

::

    SQLSTATE, where the server sent one ─▶ the table below
    none: libpq's own words, which are English everywhere ─▶ password missing, TLS, else nobody there
"""

from __future__ import annotations

from penstock.errors import DefiniteError, PenstockError, TransientError

__all__ = ["POOLER_REMEDY", "refusal"]


POOLER_REMEDY = "Connect to Postgres itself: its own host and port, not those of the pooler."

_PASSING = ("08", "53", "57")
_NETWORK = "Check that the server runs and that host and port are right."
_TLS_WORDS = ("SSL", "certificate", "private key", "TLS")


def refusal(
    where: str, said: str, sqlstate: str | None, user: str, *, replication: bool, needs_password: bool
) -> PenstockError:
    """Turn a refused connection into an error of ours."""
    at = f"{where}: {said}"
    code = sqlstate or _guess(said, needs_password)
    if code in ("28P01", "28P00"):
        remedy = "Set PGPASSWORD, or add a line to ~/.pgpass, with the right password for this user."
        return DefiniteError(f"Postgres refused the login at {at}", remedy)
    if code == "08P01":
        return DefiniteError(f"a connection pooler answers, not Postgres, at {at}", POOLER_REMEDY)
    if code == "42501":
        return _no_privilege(at, user, replication)
    if code == "TLS":
        remedy = "Check sslmode, sslrootcert, sslcert and sslkey of the connection, and the server's certificate."
        return DefiniteError(f"no secure connection to Postgres at {at}", remedy)
    if code is None or code.startswith(_PASSING):
        return TransientError(f"cannot reach Postgres at {at}", _NETWORK)
    return DefiniteError(f"Postgres refused the connection at {at}", "Check database, user and pg_hba.conf.")


def _no_privilege(at: str, user: str, replication: bool) -> DefiniteError:
    name = '"' + user.replace('"', '""') + '"' if user else "the role"
    if replication:
        remedy = f"Run: ALTER ROLE {name} REPLICATION; (on Amazon RDS: GRANT rds_replication TO {name};)"
        return DefiniteError(f"Postgres refused replication at {at}", remedy)
    return DefiniteError(f"Postgres refused the connection at {at}", f"Run: GRANT CONNECT ON DATABASE … TO {name};")


_WORDS = (
    ("password authentication failed", "28P01"),
    ("unsupported startup parameter", "08P01"),
    ("must be superuser or replication role", "42501"),
    ("permission denied", "42501"),
    ("too many", "53300"),
    ("remaining connection slots", "53300"),
    ("starting up", "57P03"),
    ("shutting down", "57P03"),
    ("in recovery mode", "57P03"),
    ("not yet accepting", "57P03"),
)


def _guess(said: str, needs_password: bool) -> str | None:
    """Without a SQLSTATE, go by the words: those of libpq, or of a server whose SQLSTATE could not be had."""
    if needs_password or "no password supplied" in said:
        return "28P01"
    known = next((code for words, code in _WORDS if words in said), None)
    if known is not None:
        return known
    if "FATAL" in said:
        return "28000"
    return "TLS" if any(word in said for word in _TLS_WORDS) else None
