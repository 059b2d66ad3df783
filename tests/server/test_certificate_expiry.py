"""When certificates expire, against what OpenSSL says of them."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import pytest

from app.server.tls import expiry
from tests.needs import skip_without


def make_certificate(folder: Path, days: int, *options: str) -> bytes:
    """A certificate and its key in one file, good for so many days."""
    skip_without(openssl="openssl")
    pem, key = folder / f"{days}.pem", folder / f"{days}.key"
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(key)]
    command = ["openssl", "req", "-x509", *curve, "-out", str(pem), "-days", str(days), "-subj", "/CN=x", *options]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return key.read_bytes() + pem.read_bytes()


def by_openssl(pem: bytes) -> float:
    command = ["openssl", "x509", "-noout", "-enddate"]
    said = subprocess.run(command, input=pem, check=True, capture_output=True, timeout=60).stdout.decode()
    return ssl.cert_time_to_seconds(said.strip().removeprefix("notAfter="))


@pytest.mark.parametrize("days", [1, 400, 40_000])  # the last one ends after 2049, which needs another form of time
def test_the_end_of_a_certificate_is_that_of_openssl(days: int, tmp_path: Path) -> None:
    pem = make_certificate(tmp_path, days)
    assert expiry(pem) == by_openssl(pem)


def test_a_chain_is_good_until_the_first_of_it_expires(tmp_path: Path) -> None:
    long, short = make_certificate(tmp_path, 50), make_certificate(tmp_path, 3)
    assert expiry(long + short) == expiry(short + long) == by_openssl(short) < by_openssl(long)
