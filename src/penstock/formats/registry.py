"""A schema registry with Confluent's interface: what a schema id means, and the latest schema of a subject.

An id never changes its meaning, so what was read once is kept for ever: in memory, and in a folder if one is given.
That the registry does not know an id is not kept: it may come later. Schemas that refer to others are read with all
of these.

Passwords are references (`penstock.secret`), read when a request is made and sent to the registry alone.
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
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from penstock.errors import DefiniteError, TransientError, UsageError
from penstock.secret import check_reference, resolve

__all__ = ["RegisteredSchema", "Registry", "RegistryAddress"]

_SECONDS = 10.0
_MOST_BYTES = 16 << 20
_NOT_FOUND = 404
_REFUSED = {401, 403}
_MEDIA_TYPE = "application/vnd.schemaregistry.v1+json, application/json"


class RegistryAddress(BaseModel):
    """Where a registry is and how to log in to it. It may be stored and shown: passwords are references."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    url: str = Field(description="the registry's address: http://… or https://…")
    username: str | None = Field(default=None, description="the user, where the registry asks for one")
    password: str | None = Field(default=None, description="where the password is: env:NAME or file:PATH")
    token: str | None = Field(default=None, description="where a bearer token is: env:NAME or file:PATH")
    ca_location: str | None = Field(default=None, description="a file with the certificates to trust")
    certificate_location: str | None = Field(default=None, description="a file with the certificate to show")
    key_location: str | None = Field(default=None, description="a file with that certificate's private key")
    key_password: str | None = Field(default=None, description="what unlocks that key: env:NAME or file:PATH")

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            message = "a schema registry's address begins with http:// or https:// and names a host"
            raise UsageError(message, "Write it like http://registry:8081.")
        if parts.username or parts.password:
            message = "the address of a schema registry holds a user or password"
            raise UsageError(message, "Give username, and password = 'env:NAME' or 'file:PATH'.")
        return url.rstrip("/")

    @field_validator("password", "token", "key_password")
    @classmethod
    def _check_secret(cls, reference: str | None) -> str | None:
        return None if reference is None else check_reference(reference)


class RegisteredSchema(BaseModel):
    """A schema with all that it refers to."""

    model_config = ConfigDict(frozen=True)

    kind: str
    """AVRO, JSON or PROTOBUF."""
    text: str
    references: tuple[tuple[str, str], ...] = ()
    """Names and texts of the schemas that it needs, each after those that it needs itself."""
    id: int | None = None


class _Staying(urllib.request.HTTPRedirectHandler):
    """Follows nobody elsewhere: a password would go along."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Make a redirect the answer, which is then an error."""


class Registry:
    """Asks a registry, and remembers. One serves any number of threads."""

    def __init__(self, address: RegistryAddress, cache: Path | None = None) -> None:
        self._address = address
        self._known: dict[int, RegisteredSchema] = {}
        self._lock = threading.Lock()
        self._folder = None if cache is None else cache / hashlib.sha256(address.url.encode()).hexdigest()[:16]

    def schemas(self, ids: Iterable[int]) -> dict[int, RegisteredSchema | None]:
        """Return what ids mean; None for those that the registry does not know.

        `TransientError` where it does not answer: nothing is known then, and the caller tries again.
        """
        return {one: self.schema(one) for one in ids}

    def schema(self, schema_id: int) -> RegisteredSchema | None:
        """Return what one id means."""
        with self._lock:
            found = self._known.get(schema_id) or self._stored(schema_id)
        if found is None:
            answer = self._get(f"/schemas/ids/{schema_id}")
            if answer is None:
                return None
            found = self._complete(answer, schema_id)
            self._store(schema_id, found)
        with self._lock:
            self._known[schema_id] = found
        return found

    def latest(self, subject: str) -> RegisteredSchema:
        """Return the latest schema of a subject; never from memory."""
        answer = self._get(f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/latest")
        if answer is None:
            message = f"the schema registry at {self._address.url} has no subject {subject!r}"
            raise DefiniteError(message, "Register a schema under it, name another subject, or give the schema.")
        return self._complete(answer, answer.get("id"))

    def _complete(self, answer: dict[str, Any], schema_id: Any) -> RegisteredSchema:
        if not isinstance(answer.get("schema"), str):
            raise self._odd()
        texts: dict[str, str] = {}
        self._collect(answer, texts)
        identity = schema_id if isinstance(schema_id, int) else None
        kind = answer.get("schemaType") or "AVRO"
        return RegisteredSchema(kind=kind, text=answer["schema"], references=tuple(texts.items()), id=identity)

    def _collect(self, answer: dict[str, Any], texts: dict[str, str]) -> None:
        """Gather what a schema refers to, deepest first."""
        for reference in answer.get("references") or ():
            name = reference.get("name", "")
            if name in texts:
                continue
            subject = urllib.parse.quote(str(reference.get("subject")), safe="")
            found = self._get(f"/subjects/{subject}/versions/{int(reference.get('version', 0))}")
            if found is None or not isinstance(found.get("schema"), str):
                message = f"the schema registry at {self._address.url} lacks {name!r}, which another schema refers to"
                raise DefiniteError(message, "Register the referenced schema again.")
            self._collect(found, texts)
            texts[name] = found["schema"]

    # -- the folder ----------------------------------------------------------------------------------------------------

    def _stored(self, schema_id: int) -> RegisteredSchema | None:
        if self._folder is None:
            return None
        try:
            return RegisteredSchema.model_validate_json((self._folder / f"{schema_id}.json").read_bytes())
        except (OSError, ValueError):  # not there, or half-written by a crash: the registry has it
            return None

    def _store(self, schema_id: int, found: RegisteredSchema) -> None:
        if self._folder is None:
            return
        with contextlib.suppress(OSError):  # it only saves a request
            self._folder.mkdir(parents=True, exist_ok=True)
            scratch = self._folder / f".{schema_id}.{os.getpid()}.{threading.get_ident()}"
            scratch.write_text(found.model_dump_json(), encoding="utf-8")
            scratch.replace(self._folder / f"{schema_id}.json")

    # -- requests ------------------------------------------------------------------------------------------------------

    def _get(self, path: str) -> dict[str, Any] | None:
        """Return the answer; None where the registry says that there is none."""
        request = urllib.request.Request(f"{self._address.url}{path}", headers=self._headers())  # noqa: S310 - checked
        try:
            opener = urllib.request.build_opener(_Staying, urllib.request.HTTPSHandler(context=self._trust()))
            with opener.open(request, timeout=_SECONDS) as answer:
                found = json.loads(answer.read(_MOST_BYTES))
        except urllib.error.HTTPError as error:
            with error:  # it holds the connection
                self._check_refusal(error)
            return None
        except (OSError, ValueError) as error:
            why = getattr(error, "reason", None) or error
            raise self._unreachable(type(why).__name__ if not isinstance(why, str) else why) from None
        if not isinstance(found, dict):
            raise self._odd()
        return found

    def _check_refusal(self, error: urllib.error.HTTPError) -> None:
        """Return if the registry says that there is no such thing, and raise what it means otherwise."""
        if error.code == _NOT_FOUND and self._says_absent(error):
            return
        if error.code in _REFUSED:
            message = f"the schema registry at {self._address.url} refuses access (HTTP {error.code})"
            raise DefiniteError(message, "Give a username and a password, or a token, that may read schemas.")
        msg = f"HTTP {error.code}"
        raise self._unreachable(msg)

    def _says_absent(self, error: urllib.error.HTTPError) -> bool:
        """Tell the registry's own "not found" from that of a proxy or a wrong address."""
        try:
            return isinstance(json.loads(error.read(_MOST_BYTES)).get("error_code"), int)
        except (OSError, ValueError, AttributeError):
            return False

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": _MEDIA_TYPE}
        if self._address.token is not None:
            headers["Authorization"] = f"Bearer {resolve(self._address.token)}"
        elif self._address.username is not None:
            password = "" if self._address.password is None else resolve(self._address.password)
            both = base64.b64encode(f"{self._address.username}:{password}".encode()).decode()
            headers["Authorization"] = f"Basic {both}"
        return headers

    def _trust(self) -> ssl.SSLContext | None:
        if not self._address.url.startswith("https:"):
            return None
        try:
            return self._tls()
        except OSError as error:  # a file that is not there, not PEM, or locked by another password
            files = (self._address.ca_location, self._address.certificate_location, self._address.key_location)
            named = ", ".join(file for file in files if file is not None)
            message = f"certificates for the schema registry cannot be used: {error.strerror or type(error).__name__}"
            raise DefiniteError(message, f"Check {named}, and what the key's password refers to.") from None

    def _tls(self) -> ssl.SSLContext:
        address = self._address
        context = ssl.create_default_context(cafile=address.ca_location)
        if address.certificate_location is not None:
            password = None if address.key_password is None else resolve(address.key_password)
            context.load_cert_chain(address.certificate_location, address.key_location, password or "")
        return context

    def _unreachable(self, why: str) -> TransientError:
        return TransientError(
            f"the schema registry at {self._address.url} does not answer: {why}",
            "Nothing is lost: messages wait until it does. Check that it runs and that the address is right.",
        )

    def _odd(self) -> TransientError:
        return self._unreachable("its answer is not that of a schema registry")
