"""The addresses of a class, and its self-signed certificate for `--tls`.

Learners' machines check the certificate against the fingerprint in the class's address, and the instructor's browser
asks about it once. We create it with the `openssl` program, so no package has to be installed.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import socket
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

ANY = ("0.0.0.0", "::", "")
LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Address:
    """The address of a class; `given` overrides the machine's own address, for example behind a proxy."""

    host: str
    port: int
    fingerprint: str = ""  # of the self-signed certificate, if any
    given: str = ""

    @property
    def is_loopback(self) -> bool:
        return self.host in LOOPBACK or self.host.startswith("127.")

    @property
    def is_open(self) -> bool:
        """Whether others on the network can read the traffic: it leaves this machine unencrypted."""
        return not self.is_loopback and not self.base.startswith("https:")

    @property
    def base(self) -> str:
        """The base URL, without a trailing slash."""
        if self.given:
            return self.given.rstrip("/")
        host = outgoing_address() if self.host in ANY else self.host
        bracketed = f"[{host}]" if ":" in host else host
        return f"{'https' if self.fingerprint else 'http'}://{bracketed}:{self.port}"

    @property
    def learners(self) -> str:
        """The URL for learners, with the certificate's fingerprint to check."""
        return f"{self.base}/#sha256={self.fingerprint}" if self.fingerprint else self.base

    def with_code(self, code: str, name: str = "code") -> str:
        """Return the URL that a phone opens: the code comes after the `#`, so browsers do not send it."""
        return f"{self.base}/#{name}={code}" if code else self.base

    def instructors(self, token: str) -> str:
        """Return the URL for the instructor."""
        return f"{self.base}/?token={token}"

    @property
    def names(self) -> frozenset[str]:
        """The host names that we answer to. To prevent DNS rebinding, we accept no others, except IP addresses."""
        own = {"localhost", self.host, socket.gethostname(), socket.getfqdn(), urlsplit(self.given).hostname or ""}
        return frozenset(name.lower() for name in own if name)


def qr_code(text: str) -> str:
    """Return a QR code as a data URI, drawn on this machine; "" if `segno` is not installed."""
    try:
        import segno
    except ImportError:
        return ""
    return segno.make(text, error="m").svg_data_uri(border=3, light="#fff")


def certificate_names(host: str) -> list[str]:
    """Return the subjectAltName entries: every name and IP address of this machine."""
    numbers = {"127.0.0.1", outgoing_address()}
    names = {"localhost", socket.gethostname()}
    try:
        numbers.add(str(ipaddress.ip_address(outgoing_address() if host in ANY else host)))
    except ValueError:
        names.add(host)
    return [*(f"DNS:{name}" for name in sorted(names)), *(f"IP:{number}" for number in sorted(numbers))]


def outgoing_address() -> str:
    """Return the IP address of this machine on its network, without sending anything."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # reserved for documentation
            return probe.getsockname()[0]
        except OSError:
            return "127.0.0.1"


DAYS = 400  # longer than a course of two semesters


class NoCertificate(RuntimeError):
    """The certificate could not be made; the message says what to do."""


def own_certificate(record: Path, names: list[str]) -> tuple[Path, Path]:
    """Return the certificate and key files next to the record, creating them on first use."""
    certificate, key = record.with_name(f"{record.name}.crt"), record.with_name(f"{record.name}.key")
    if not (certificate.exists() and key.exists()):
        os.close(os.open(key, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600))  # openssl preserves the mode
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
    """Return the SHA-256 of a certificate as 64 hexadecimal digits."""
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate.read_text())).hexdigest()


def encrypted(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return the server's SSL context for a certificate and key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    return context
