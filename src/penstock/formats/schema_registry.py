"""Client of a schema registry with Confluent's REST API.

Schemas are looked up by id, or as the latest schema of a subject. The schema of an id never changes, so schemas are
cached for ever: in memory, and in a folder if one is given. A missing id is not cached, because it may be registered
later. A schema is returned together with all schemas that it references.

Sinks register schemas. The registry returns the id of a schema that a subject has already, so registering is
repeatable; it rejects a schema that is not compatible with the subject's earlier ones.

Passwords are references (`penstock.secret`), which are read for each request and sent to the registry only.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import ssl
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, field_validator

from penstock.errors import DefiniteError, TransientError, UsageError
from penstock.secret import check_reference, resolve

__all__ = [
    "RegisteredSchema",
    "Registry",
    "RegistryAddress",
    "SchemaReference",
    "SubjectVersion",
    "WriterSchemas",
]

_TIMEOUT_SECONDS = 10.0
_MAX_BYTES = 16 << 20
_NOT_FOUND = 404
_FORBIDDEN = {401, 403}
_CONFLICT, _UNPROCESSABLE = 409, 422
_MAX_REASON = 1000
_MEDIA_TYPE = "application/vnd.schemaregistry.v1+json, application/json"
_BODY_TYPE = "application/vnd.schemaregistry.v1+json"
_NOTHING_LOST = (
    "No message is lost: decoding resumes when the registry responds. Check that it runs, and check its URL."
)
_SINK_WAITS = "The sink resumes when the registry responds. Check that it runs, and check its URL."


class RegistryAddress(BaseModel):
    """The URL of a registry and how to authenticate. It may be stored and shown: passwords are references."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    url: str = Field(description="URL of the registry: http://… or https://…")
    username: str | None = Field(default=None, description="user name, if the registry requires one")
    password: str | None = Field(default=None, description="reference to the password: env:NAME or file:PATH")
    token: str | None = Field(default=None, description="reference to a bearer token: env:NAME or file:PATH")
    ca_location: str | None = Field(default=None, description="file with the trusted CA certificates")
    certificate_location: str | None = Field(default=None, description="file with the client certificate")
    key_location: str | None = Field(default=None, description="file with the private key of the client certificate")
    key_password: str | None = Field(
        default=None, description="reference to the password of the private key: env:NAME or file:PATH"
    )

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            message = "schema registry URL must begin with http:// or https:// and include a host"
            raise UsageError(message, "Use a URL such as http://registry:8081.")
        if parts.username or parts.password:
            message = "schema registry URL must not contain a user or password"
            raise UsageError(message, "Set username, and password = 'env:NAME' or 'file:PATH'.")
        return url.rstrip("/")

    @field_validator("password", "token", "key_password")
    @classmethod
    def _check_secret(cls, reference: str | None) -> str | None:
        return None if reference is None else check_reference(reference)


class RegisteredSchema(BaseModel):
    """A schema with all schemas that it references."""

    model_config = ConfigDict(frozen=True)

    kind: str
    """AVRO, JSON or PROTOBUF."""
    text: str
    references: tuple[tuple[str, str], ...] = ()
    """Names and texts of the referenced schemas; each follows the ones that it references itself."""
    id: int | None = None


WriterSchemas = Mapping[int, RegisteredSchema | None]
"""Schemas by id; None for an id that the registry does not have."""


class SchemaReference(NamedTuple):
    """A reference of a schema to another one: the name in the schema, and the version of a subject."""

    name: str
    subject: str
    version: int


class SubjectVersion(NamedTuple):
    """A version of a subject, and the id of its schema."""

    number: int
    id: int


class _Rejected(Exception):
    """The registry does not accept a schema."""

    def __init__(self, code: int, reason: str) -> None:
        self.code, self.reason = code, reason


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Does not follow redirects: they would send the password to another host."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Return no request, so that the redirect becomes an HTTP error."""


class Registry:
    """A caching client of one registry; safe for use from several threads."""

    def __init__(self, address: RegistryAddress, cache: Path | None = None) -> None:
        self._address = address
        self._schemas: dict[int, RegisteredSchema] = {}
        self._registered: dict[tuple[Any, ...], int] = {}
        self._lock = threading.Lock()
        self._folder = None if cache is None else cache / hashlib.sha256(address.url.encode()).hexdigest()[:16]

    def schemas(self, ids: Iterable[int]) -> dict[int, RegisteredSchema | None]:
        """Return schemas by id; None for an id that the registry does not have.

        Raise `TransientError` if the registry does not respond; the caller retries.
        """
        return {one: self.schema(one) for one in ids}

    def schema(self, schema_id: int) -> RegisteredSchema | None:
        """Return the schema of one id; None if the registry does not have it."""
        with self._lock:
            found = self._schemas.get(schema_id) or self._read_cached(schema_id)
        if found is None:
            response = self._get(f"/schemas/ids/{schema_id}")
            if response is None:
                return None
            found = self._with_references(response, schema_id)
            self._write_cached(schema_id, found)
        with self._lock:
            self._schemas[schema_id] = found
        return found

    def latest(self, subject: str) -> RegisteredSchema:
        """Return the latest schema of a subject; never from the cache."""
        response = self._get(f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/latest")
        if response is None:
            message = f"schema registry at {self._address.url} has no subject {subject!r}"
            raise DefiniteError(
                message, "Register a schema under this subject, or specify another subject or the schema itself."
            )
        return self._with_references(response, response.get("id"))

    def versions_after(
        self, subject: str, known: SubjectVersion | None
    ) -> list[tuple[SubjectVersion, RegisteredSchema]]:
        """Return the schemas that a subject got after a version, in order; without one, the latest. Never cached.

        A subject that does not exist has none. If its latest version is not after `known`, but another one, the subject
        was registered again: the latest is returned.
        """
        place = f"/subjects/{urllib.parse.quote(subject, safe='')}/versions"
        latest = self._get(f"{place}/latest")
        if latest is None:
            return []
        last = SubjectVersion(int(latest.get("version", 0)), int(latest.get("id", 0)))
        if last == known:
            return []
        between = range(known.number + 1, last.number) if known is not None else ()
        responses = [found for number in between if (found := self._get(f"{place}/{number}")) is not None]
        return [
            (
                SubjectVersion(int(each.get("version", 0)), int(each.get("id", 0))),
                self._with_references(each, each.get("id")),
            )
            for each in (*responses, latest)
        ]

    def register(self, subject: str, kind: str, text: str, references: Sequence[SchemaReference] = ()) -> int:
        """Register a schema under a subject, unless the subject has it; return its id.

        Raise `DefiniteError` if the registry rejects the schema, and `TransientError` if it does not respond.
        """
        wanted = subject, kind, text, tuple(references)
        with self._lock:
            known = self._registered.get(wanted)
        if known is not None:
            return known
        found = self._post(f"/subjects/{urllib.parse.quote(subject, safe='')}/versions", subject, wanted)
        with self._lock:
            self._registered[wanted] = found
        return found

    def _post(self, path: str, subject: str, wanted: tuple[Any, ...]) -> int:
        _, kind, text, references = wanted
        body = {"schema": text, "schemaType": kind, "references": [one._asdict() for one in references]}
        try:
            response = self._request(path, json.dumps(body).encode())
        except _Rejected as rejected:
            raise self._rejection(rejected, subject, kind) from None
        except TransientError as error:
            raise TransientError(error.message, _SINK_WAITS) from None
        if response is None or not isinstance(response.get("id"), int):
            raise TransientError(self._invalid_response().message, _SINK_WAITS)
        return int(response["id"])

    def _rejection(self, rejected: _Rejected, subject: str, kind: str) -> DefiniteError:
        if rejected.code == _CONFLICT:
            message = f"schema is not compatible with earlier schemas of subject {subject!r}: {rejected.reason}"
            hint = (
                f"Relax the compatibility of the subject (PUT {self._address.url}/config/{subject}), or create a sink "
                "with another topic."
            )
            return DefiniteError(message, hint)
        message = f"schema registry rejected the {kind} schema for subject {subject!r}: {rejected.reason}"
        return DefiniteError(message, "Fix the reported error, or create a sink with another topic or format.")

    def check(self) -> None:
        """Raise an error if the registry does not respond, or denies access."""
        self._get("/config")

    def _with_references(self, response: dict[str, Any], schema_id: Any) -> RegisteredSchema:
        if not isinstance(response.get("schema"), str):
            raise self._invalid_response()
        texts: dict[str, str] = {}
        self._collect(response, texts)
        known_id = schema_id if isinstance(schema_id, int) else None
        kind = response.get("schemaType") or "AVRO"
        return RegisteredSchema(kind=kind, text=response["schema"], references=tuple(texts.items()), id=known_id)

    def _collect(self, response: dict[str, Any], texts: dict[str, str]) -> None:
        """Collect the schemas that a schema references, depth first."""
        for reference in response.get("references") or ():
            name = reference.get("name", "")
            if name in texts:
                continue
            subject = urllib.parse.quote(str(reference.get("subject")), safe="")
            found = self._get(f"/subjects/{subject}/versions/{int(reference.get('version', 0))}")
            if found is None or not isinstance(found.get("schema"), str):
                message = f"schema registry at {self._address.url} lacks the referenced schema {name!r}"
                raise DefiniteError(message, "Register the referenced schema again.")
            self._collect(found, texts)
            texts[name] = found["schema"]

    # -- disk cache ----------------------------------------------------------------------------------------------------

    def _read_cached(self, schema_id: int) -> RegisteredSchema | None:
        if self._folder is None:
            return None
        try:
            return RegisteredSchema.model_validate_json((self._folder / f"{schema_id}.json").read_bytes())
        except (OSError, ValueError):  # missing, or half-written by a crash: ask the registry
            return None

    def _write_cached(self, schema_id: int, found: RegisteredSchema) -> None:
        if self._folder is None:
            return
        with contextlib.suppress(OSError):  # the cache only saves requests
            self._folder.mkdir(parents=True, exist_ok=True)
            scratch = self._folder / f".{schema_id}.{os.getpid()}.{threading.get_ident()}"
            scratch.write_text(found.model_dump_json(), encoding="utf-8")
            scratch.replace(self._folder / f"{schema_id}.json")

    # -- requests ------------------------------------------------------------------------------------------------------

    def _get(self, path: str) -> dict[str, Any] | None:
        """Return the response; None if the registry reports "not found"."""
        return self._request(path)

    def _request(self, path: str, body: bytes | None = None) -> dict[str, Any] | None:
        headers = self._headers() | ({} if body is None else {"Content-Type": _BODY_TYPE})
        request = urllib.request.Request(f"{self._address.url}{path}", body, headers)  # noqa: S310 - checked
        try:
            opener = urllib.request.build_opener(_NoRedirects, urllib.request.HTTPSHandler(context=self._tls_context()))
            with opener.open(request, timeout=_TIMEOUT_SECONDS) as response:
                found = json.loads(response.read(_MAX_BYTES))
        except urllib.error.HTTPError as error:
            with error:  # closes the connection
                self._check_http_error(error, "read" if body is None else "register")
            return None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise self._unreachable(type(reason).__name__ if not isinstance(reason, str) else reason) from None
        if not isinstance(found, dict):
            raise self._invalid_response()
        return found

    def _check_http_error(self, error: urllib.error.HTTPError, permission: str) -> None:
        """Return if the registry reports "not found"; otherwise raise the matching error."""
        if error.code == _NOT_FOUND and self._is_not_found(error):
            return
        if error.code in _FORBIDDEN:
            message = f"access to the schema registry at {self._address.url} denied (HTTP {error.code})"
            hint = f"Set a username and a password, or a token, with permission to {permission} schemas."
            raise DefiniteError(message, hint)
        if error.code in (_CONFLICT, _UNPROCESSABLE) and permission == "register":
            raise _Rejected(error.code, self._reason(error))
        msg = f"HTTP {error.code}"
        raise self._unreachable(msg)

    def _is_not_found(self, error: urllib.error.HTTPError) -> bool:
        """Return whether this is the registry's own "not found", and not that of a proxy or a wrong URL."""
        try:
            return isinstance(json.loads(error.read(_MAX_BYTES)).get("error_code"), int)
        except (OSError, ValueError, AttributeError):
            return False

    def _reason(self, error: urllib.error.HTTPError) -> str:
        """Return the registry's message, in one line of limited length."""
        try:
            found = " ".join(str(json.loads(error.read(_MAX_BYTES))["message"]).split())
        except (OSError, ValueError, KeyError, TypeError):
            return f"HTTP {error.code}"
        return found if len(found) <= _MAX_REASON else f"{found[:_MAX_REASON]}…"

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": _MEDIA_TYPE}
        if self._address.token is not None:
            headers["Authorization"] = f"Bearer {resolve(self._address.token)}"
        elif self._address.username is not None:
            password = "" if self._address.password is None else resolve(self._address.password)
            both = base64.b64encode(f"{self._address.username}:{password}".encode()).decode()
            headers["Authorization"] = f"Basic {both}"
        return headers

    def _tls_context(self) -> ssl.SSLContext | None:
        if not self._address.url.startswith("https:"):
            return None
        try:
            return self._load_certificates()
        except OSError as error:  # a file is missing, not PEM, or encrypted with another password
            files = (self._address.ca_location, self._address.certificate_location, self._address.key_location)
            named = ", ".join(file for file in files if file is not None)
            message = f"could not load certificates for the schema registry: {error.strerror or type(error).__name__}"
            raise DefiniteError(message, f"Check {named}, and the password that key_password refers to.") from None

    def _load_certificates(self) -> ssl.SSLContext:
        address = self._address
        context = ssl.create_default_context(cafile=address.ca_location)
        if address.certificate_location is not None:
            password = None if address.key_password is None else resolve(address.key_password)
            context.load_cert_chain(address.certificate_location, address.key_location, password or "")
        return context

    def _unreachable(self, reason: str) -> TransientError:
        return TransientError(
            f"schema registry at {self._address.url} does not respond: {reason}",
            _NOTHING_LOST,
        )

    def _invalid_response(self) -> TransientError:
        return self._unreachable("the response is not that of a schema registry")
