"""A certificate authority for tests, and what it signs, made by ``openssl``."""

from __future__ import annotations

import subprocess
from pathlib import Path


def make_authority(folder: Path, name: str = "ca") -> Path:
    """Make ``NAME.crt`` and ``NAME.key``; return the certificate."""
    key, certificate = folder / f"{name}.key", folder / f"{name}.crt"
    _openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN=penstock {name}",
             "-keyout", key, "-out", certificate)  # fmt: skip
    return certificate


def make_certificate(folder: Path, name: str, subject: str, *, alternative: str = "") -> tuple[Path, Path]:
    """Sign a certificate with the authority ``ca`` of the folder; return it and its key."""
    key, request, certificate = (folder / f"{name}.{kind}" for kind in ("key", "csr", "crt"))
    _openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={subject}", "-keyout", key, "-out", request)
    extensions = folder / f"{name}.ext"
    extensions.write_text(f"subjectAltName={alternative}\n" if alternative else "basicConstraints=CA:FALSE\n")
    _openssl("x509", "-req", "-in", request, "-CA", folder / "ca.crt", "-CAkey", folder / "ca.key", "-days", "2",
             "-CAcreateserial", "-extfile", extensions, "-out", certificate)  # fmt: skip
    key.chmod(0o600)
    return certificate, key


def lock_key(key: Path, locked: Path, passphrase: str) -> None:
    """Write a key that a passphrase protects."""
    _openssl("rsa", "-in", key, "-aes256", "-passout", f"pass:{passphrase}", "-out", locked)
    locked.chmod(0o600)


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
