"""The addresses of a class, and its own certificate for `--tls`.

No authority vouches for that certificate: learners' machines know it by the fingerprint in the address they are given,
and a browser asks the instructor once. The `openssl` program makes it, so no package has to be installed.
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
    """Where a class is: `given` is what learners reach it by, where that is not the machine's own address."""

    host: str
    port: int
    fingerprint: str = ""  # of its own certificate, if it has one
    given: str = ""

    @property
    def is_loopback(self) -> bool:
        return self.host in LOOPBACK or self.host.startswith("127.")

    @property
    def is_open(self) -> bool:
        """Whether what is said here can be read on the way: by other machines, and not encrypted."""
        return not self.is_loopback and not self.base.startswith("https:")

    @property
    def base(self) -> str:
        """Without a slash at the end."""
        if self.given:
            return self.given.rstrip("/")
        host = outgoing_address() if self.host in ANY else self.host
        bracketed = f"[{host}]" if ":" in host else host
        return f"{'https' if self.fingerprint else 'http'}://{bracketed}:{self.port}"

    @property
    def learners(self) -> str:
        """What learners are given; with the certificate's fingerprint, by which their side knows it."""
        return f"{self.base}/#sha256={self.fingerprint}" if self.fingerprint else self.base

    def instructors(self, token: str) -> str:
        """What the instructor opens."""
        return f"{self.base}/?token={token}"

    @property
    def names(self) -> frozenset[str]:
        """The names that lead here. Any number does, too, but no name that somebody else has made up."""
        own = {"localhost", self.host, socket.gethostname(), socket.getfqdn(), urlsplit(self.given).hostname or ""}
        return frozenset(name.lower() for name in own if name)


def certificate_names(host: str) -> list[str]:
    """What a certificate says that it is for: every way in which this machine may be asked for."""
    numbers = {"127.0.0.1", outgoing_address()}
    names = {"localhost", socket.gethostname()}
    try:
        numbers.add(str(ipaddress.ip_address(outgoing_address() if host in ANY else host)))
    except ValueError:
        names.add(host)
    return [*(f"DNS:{name}" for name in sorted(names)), *(f"IP:{number}" for number in sorted(numbers))]


def outgoing_address() -> str:
    """The number under which this machine is seen from outside; nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address that is kept for examples
            return probe.getsockname()[0]
        except OSError:
            return "127.0.0.1"


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
