"""An insecure certificate authority and certificates for tests, created with ``openssl``."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from penstock.errors import DefiniteError

__all__ = ["has_openssl", "lock_key", "make_authority", "make_certificate"]

_KEY = ("-newkey", "rsa:2048", "-nodes")


def has_openssl() -> bool:
    """Return whether ``openssl`` is installed."""
    return shutil.which("openssl") is not None


def make_authority(folder: Path, name: str = "ca") -> Path:
    """Create ``NAME.crt`` and ``NAME.key``; return the certificate."""
    key, certificate = folder / f"{name}.key", folder / f"{name}.crt"
    _openssl("req", "-x509", *_KEY, "-days", "2", "-subj", f"/CN=penstock {name}", "-keyout", key, "-out", certificate)
    return certificate


def make_certificate(folder: Path, name: str, subject: str, *, alternative: str = "") -> tuple[Path, Path]:
    """Create a certificate signed by the authority ``ca`` of the folder; return it and its key."""
    key, request, certificate = (folder / f"{name}.{kind}" for kind in ("key", "csr", "crt"))
    _openssl("req", *_KEY, "-subj", f"/CN={subject}", "-keyout", key, "-out", request)
    extensions = folder / f"{name}.ext"
    extension = f"subjectAltName={alternative}\n" if alternative else "basicConstraints=CA:FALSE\n"
    extensions.write_text(extension, encoding="utf-8")
    _openssl("x509", "-req", "-in", request, "-CA", folder / "ca.crt", "-CAkey", folder / "ca.key", "-days", "2",
             "-CAcreateserial", "-extfile", extensions, "-out", certificate)  # fmt: skip
    key.chmod(0o600)
    return certificate, key


def lock_key(key: Path, locked: Path, passphrase: str) -> None:
    """Write a copy of a key that is encrypted with a passphrase."""
    _openssl("rsa", "-in", key, "-aes256", "-passout", f"pass:{passphrase}", "-out", locked)
    locked.chmod(0o600)


def _openssl(*arguments: str | Path) -> None:
    if not has_openssl():
        message = "openssl is not installed"
        raise DefiniteError(message, "Install it, on Debian with: apt install openssl")
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
