"""HTTPS: the whole way over a real handshake, large bodies in both directions, renewal, clients with certificates."""

from __future__ import annotations

import os
import re
import shutil
import signal
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import pytest
from safetensors.numpy import load, save

from app.server.tls import expiry
from tests.http.conftest import Start
from tests.http.held import until
from tests.http.raw import TINY
from tests.http.server import GATHERND, Server, run_program
from tests.needs import skip_without

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the Debian package openssl")
SAFETENSORS = {"content-type": "application/x-safetensors"}
PASSWORD = "a password of this test"


@dataclass
class Pair:
    """A certificate of the test's own, valid for loopback, and its private key."""

    certificate: Path
    key: Path

    def flags(self) -> tuple[str, ...]:
        return "--tls-cert", str(self.certificate), "--tls-key", str(self.key)

    def trusting(self) -> ssl.SSLContext:
        """A client's context that knows this certificate and no other."""
        return ssl.create_default_context(cafile=str(self.certificate))


CURVE = ("ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
RSA = ("rsa:2048",)


def make_pair(folder: Path, name: str, *options: str, days: int = 2, kind: tuple[str, ...] = CURVE) -> Pair:
    skip_without(openssl="openssl")
    folder.mkdir(parents=True, exist_ok=True)
    pair = Pair(folder / "cert.pem", folder / "key.pem")
    names = "subjectAltName=IP:127.0.0.1,DNS:localhost"
    files = ["-keyout", str(pair.key), "-out", str(pair.certificate)]
    encryption = options or ("-nodes",)
    command = ["openssl", "req", "-x509", "-newkey", *kind, *files, *encryption, "-days", str(days)]
    subprocess.run([*command, "-subj", f"/CN={name}", "-addext", names], check=True, capture_output=True, timeout=60)
    return pair


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("tls"), "gathernd-test")


@pytest.fixture(scope="module", params=["1", pytest.param("2", marks=pytest.mark.slow)])
def server(request: pytest.FixtureRequest, start: Start, pair: Pair) -> Iterator[Server]:
    with start("--workers", request.param, *pair.flags(), tls=pair.trusting()) as running:
        yield running


def test_gathers_over_https(server: Server) -> None:
    client = server.shared_client()
    assert [client.post("/gathernd", content=TINY).json()["output"]["values"] for _ in range(20)] == [[8]] * 20
    assert client.get("/docs").status_code == 200
    assert client.post("/gathernd", content=b"{").json()["code"] == "malformed_request"


def test_large_bodies_both_ways_over_https(server: Server) -> None:
    """The ways of a body past the parser, and of an answer in many writes, are those of the transport under TLS too."""
    source = np.random.default_rng(7)
    data = source.random((1 << 18, 8), np.float32)
    client = server.shared_client()
    for rows in (1 << 18, 1000, 3):
        indices = source.integers(0, len(data), (rows, 1))
        body = save({"data": data, "indices": indices})
        answer = client.post("/gathernd", content=body, headers=SAFETENSORS)
        assert np.array_equal(load(answer.content)["output"], data[indices[:, 0]])
        # What comes next on this connection is read by the parser again.
        assert client.post("/gathernd", content=TINY).json()["output"]["values"] == [8]


def test_plain_http_on_the_tls_port_gets_no_answer(server: Server) -> None:
    with server.connect() as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
        try:
            got = connection.recv(4096)
        except ConnectionResetError:
            got = b""
        assert b"HTTP/1.1" not in got
    assert server.shared_client().get("/livez").status_code == 200


def test_old_versions_of_tls_are_refused(server: Server, pair: Pair) -> None:
    context = pair.trusting()
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        context.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with server.connect() as connection, pytest.raises((ssl.SSLError, ConnectionResetError)):
        context.wrap_socket(connection, server_hostname="localhost")


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_a_stop_does_not_wait_for_handshakes_or_farewells(start: Start, pair: Pair, workers: str) -> None:
    patient = "--header-timeout", "200", "--drain-timeout", "200"
    with (
        start("--workers", workers, *patient, *pair.flags(), tls=pair.trusting()) as server,
        server.connect(),
        pair.trusting().wrap_socket(server.connect(), server_hostname="localhost"),
    ):
        assert server.stop(within=60) == 0


def subject(server: Server) -> str:
    """The name in the certificate that the server shows."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with context.wrap_socket(server.connect(), server_hostname="localhost") as connection:
        shown = connection.getpeercert(binary_form=True)
    assert shown is not None
    return next((name for name in ("first", "second") if name.encode() in shown), "?")


KEPT = {"1": 1, "2": 3}
"""How many processes log that they keep the previous files: the workers and their parent."""


def is_renewed(server: Server, workers: str) -> bool:
    """Whether all workers have renewed files in force, and their parent has them for later ones."""
    text = server.log_text()
    handed_on = workers == "1" or "TLS: used for workers started from now on" in text
    return handed_on and text.count("TLS: the renewed files are in force") == int(workers)


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_a_renewed_certificate_is_shown_without_a_restart(start: Start, workers: str, tmp_path: Path) -> None:
    """Its key is of another kind: OpenSSL holds a pair for each, and clients prefer curves."""
    first, second = make_pair(tmp_path / "1", "first"), make_pair(tmp_path / "2", "second", days=9, kind=RSA)
    with start("--workers", workers, *first.flags(), tls=first.trusting()) as server:
        kept = server.shared_client()
        assert kept.get("/livez").status_code == 200
        assert subject(server) == "first"
        # The certificate alone does not fit the key: the pair in force stays.
        second.certificate.replace(first.certificate)
        until(lambda: server.log_text().count("keeping the previous files") == KEPT[workers])
        assert subject(server) == "first"
        second.key.replace(first.key)
        until(lambda: is_renewed(server, workers))
        assert {subject(server) for _ in range(6)} == {"second"}
        (shown,) = re.findall(
            r"^gathernd_tls_certificate_expiry_timestamp_seconds (.+)$", kept.get("/metrics").text, re.MULTILINE
        )
        assert float(shown) == expiry(first.certificate.read_bytes()), "of one process, not the sum of two"
        assert kept.get("/livez").status_code == 200
        assert "PRIVATE" not in server.log_text()
        assert str(tmp_path) not in server.log_text()


@pytest.mark.slow
def test_callers_need_a_certificate_where_authorities_are_named(start: Start, pair: Pair, tmp_path: Path) -> None:
    known, stranger = make_pair(tmp_path / "known", "known"), make_pair(tmp_path / "stranger", "stranger")
    context = pair.trusting()
    context.load_cert_chain(known.certificate, known.key)
    with start(*pair.flags(), "--tls-client-ca", str(known.certificate), tls=context) as server:
        assert server.shared_client().post("/gathernd", content=TINY).status_code == 200
        foreign = pair.trusting()
        foreign.load_cert_chain(stranger.certificate, stranger.key)
        for refused in (pair.trusting(), foreign):
            with pytest.raises((httpx.TransportError, ssl.SSLError)):
                httpx.get(f"{server.url}/livez", verify=refused, trust_env=False, timeout=60)


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_renewed_authorities_of_clients_are_taken_without_a_restart(
    start: Start, pair: Pair, workers: str, tmp_path: Path
) -> None:
    first, second = make_pair(tmp_path / "1", "first"), make_pair(tmp_path / "2", "second")
    authorities = tmp_path / "authorities.pem"
    authorities.write_bytes(first.certificate.read_bytes())
    contexts = [pair.trusting(), pair.trusting()]
    for context, shown in zip(contexts, (first, second), strict=True):
        context.load_cert_chain(shown.certificate, shown.key)

    def is_let_in(server: Server, number: int) -> bool:
        try:
            return httpx.get(f"{server.url}/livez", verify=contexts[number], trust_env=False, timeout=60).is_success
        except (httpx.TransportError, ssl.SSLError):
            return False

    flags = ("--workers", workers, *pair.flags(), "--tls-client-ca", str(authorities))
    with start(*flags, tls=contexts[0]) as server:
        whole = second.certificate.read_bytes()
        authorities.write_bytes(whole[: len(whole) // 2])
        until(lambda: server.log_text().count("keeping the previous files") == KEPT[workers])
        if workers == "2":
            for worker in server.workers():
                os.kill(worker, signal.SIGKILL)
            until(lambda: server.log_text().count("is accepting connections") == 4)
        assert [is_let_in(server, number) for number in (0, 1, 0, 1)] == [True, False, True, False]
        authorities.write_bytes(whole)
        until(lambda: is_renewed(server, workers))
        assert [is_let_in(server, number) for number in (0, 1, 0, 1)] == [False, True, False, True]
        assert "Traceback" not in server.log_text()


def test_a_key_with_a_password_and_one_file_for_both(start: Start, tmp_path: Path) -> None:
    locked = make_pair(tmp_path / "locked", "locked", "-passout", f"pass:{PASSWORD}")
    password = tmp_path / "password"
    password.write_text(f"{PASSWORD}\n")
    with start(*locked.flags(), "--tls-key-password-file", str(password), tls=locked.trusting()) as server:
        assert server.shared_client().post("/gathernd", content=TINY).status_code == 200
        assert PASSWORD not in server.log_text()
    both = make_pair(tmp_path / "both", "both")
    both.certificate.write_bytes(both.certificate.read_bytes() + both.key.read_bytes())
    with start("--tls-cert", str(both.certificate), tls=both.trusting()) as server:
        assert server.shared_client().post("/gathernd", content=TINY).status_code == 200


@pytest.mark.parametrize(
    ("fault", "workers", "message"),
    [
        pytest.param("missing", "2", "does not exist", marks=pytest.mark.slow),
        pytest.param("garbage", "1", "cannot be used", marks=pytest.mark.slow),
        ("strange key", "1", "key values mismatch"),
        pytest.param("locked", "1", "cannot be used", marks=pytest.mark.slow),
        pytest.param("authorities", "1", "the authorities of clients", marks=pytest.mark.slow),
        pytest.param("key alone", "1", "needs GATHERND_TLS_CERT", marks=pytest.mark.slow),
    ],
)
def test_a_pair_that_cannot_be_used_ends_the_start_with_a_reason(
    fault: str, workers: str, message: str, pair: Pair, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_text("no certificate\n")
    flags = {
        "missing": ("--tls-cert", str(tmp_path / "none.pem")),
        "garbage": ("--tls-cert", str(bad)),
        "strange key": ("--tls-cert", str(pair.certificate), "--tls-key", str(make_pair(tmp_path, "other").key)),
        "locked": make_pair(tmp_path / "locked", "locked", "-passout", f"pass:{PASSWORD}").flags(),
        "authorities": (*pair.flags(), "--tls-client-ca", str(bad)),
        "key alone": ("--tls-key", str(pair.key)),
    }[fault]
    command = [GATHERND, "serve", "--port", "0", "--store-dir", str(tmp_path / "store"), "--workers", workers, *flags]
    done = run_program(command)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert PASSWORD not in done.stderr
