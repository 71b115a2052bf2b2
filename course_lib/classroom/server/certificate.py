"""A certificate of the class's own, for `--tls`.

No authority vouches for it: learners' machines know it by the fingerprint that is part of the address they are given,
and a browser asks the instructor once. The `openssl` program makes it: it is where Python's own `ssl` is, as a rule,
and no package has to be installed for what few classes need.
"""

from __future__ import annotations

import hashlib
import os
import ssl
import subprocess
from pathlib import Path

DAYS = 400  # longer than a course of two terms


class NoCertificate(RuntimeError):
    """A certificate could not be made; the sentence says what to do."""


def own_certificate(record: Path, names: list[str]) -> tuple[Path, Path]:
    """The certificate and its key, beside the record; made if they are not there, and kept for the next start."""
    certificate, key = record.with_name(f"{record.name}.crt"), record.with_name(f"{record.name}.key")
    if not (certificate.exists() and key.exists()):
        os.close(os.open(key, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600))  # openssl keeps the mode
        _make(certificate, key, names)
    return certificate, key


def _make(certificate: Path, key: Path, names: list[str]) -> None:
    words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-sha256"]
    words += ["-days", str(DAYS), "-subj", "/CN=course class", "-addext", f"subjectAltName={','.join(names)}"]
    words += ["-keyout", str(key), "-out", str(certificate)]
    try:
        made = subprocess.run(["openssl", *words], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise NoCertificate("--tls needs the openssl program to make a certificate; install it and try again") from None
    if made.returncode:
        raise NoCertificate(f"openssl could not make a certificate: {made.stderr.strip()[-200:]}")


def fingerprint(certificate: Path) -> str:
    """The SHA-256 of a certificate, as 64 hexadecimal digits."""
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate.read_text())).hexdigest()


def encrypted(certificate: Path, key: Path) -> ssl.SSLContext:
    """What a server needs to use them."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    return context
