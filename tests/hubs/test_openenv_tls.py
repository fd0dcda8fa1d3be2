"""``openenv+https://``: a server behind TLS is played like any other, and a wrong certificate is one sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openenv_servers import Talk, observing, openenv_server
from servers import RunningServer, running_server, until
from tls_servers import Certificate, self_signed, tls_in_front_of

import envweave_gym as ew
from envweave_gym.core.faults import NotAvailable
from envweave_gym.hubs.openenv import idle_pings

ECHO = "envweave/Echo-v0"
CA_BUNDLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return self_signed(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server(ECHO, protocol="openenv") as running:
        yield running


@pytest.fixture
def how(monkeypatch: pytest.MonkeyPatch, server: RunningServer) -> dict[str, Any]:
    """The argument with the token of the server; no certificate is trusted yet but those of this machine."""
    for name in CA_BUNDLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TOKEN_OF_THE_TEST", server.token or "")
    return {"token": "env:TOKEN_OF_THE_TEST"}


@pytest.fixture
def _trusted(how: dict[str, Any], certificate: Certificate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CA_BUNDLES[0], str(certificate.file))


@pytest.mark.usefixtures("_trusted")
def test_an_episode(server: RunningServer, how: dict[str, Any], certificate: Certificate) -> None:
    with (
        tls_in_front_of(server.port, certificate) as port,
        ew.make(f"openenv+https://127.0.0.1:{port}", **how) as env,
    ):
        env.unwrapped.entrust(hf_token="s3cret")  # TLS is good enough for secrets
        env.unwrapped.entrust()
        assert env.reset(seed=1)[0]["echoed_message"] == "Echo environment ready!"
        seen, reward, *_ = env.step({"message": "hello ☃"})
        assert (seen["echoed_message"], reward) == ("hello ☃", pytest.approx(0.7))
        assert ew.state_of(env)["step_count"] == 1
    until(lambda: server.gauge("envweave_sessions") == 0)


@pytest.mark.usefixtures("_trusted")
def test_rows_of_a_vector(server: RunningServer, how: dict[str, Any], certificate: Certificate) -> None:
    with tls_in_front_of(server.port, certificate) as port:
        rows = ew.make(f"openenv+https://127.0.0.1:{port}", num_envs=4, **how)
        rows.reset(seed=1)
        rewards = rows.step({"message": ("a", "bb", "ccc", "")})[1]
        assert rewards == pytest.approx(np.array([0.1, 0.2, 0.3, 0.0]))
        rows.close()
    until(lambda: server.gauge("envweave_sessions") == 0)


@pytest.mark.usefixtures("_trusted")
def test_long_messages_and_pings(certificate: Certificate, monkeypatch: pytest.MonkeyPatch) -> None:
    def reply_and_ping(talk: Talk) -> None:
        observing(observation={"count": 1, "text": "x" * 300_000})(talk)  # many records of TLS
        talk.ping()

    monkeypatch.setattr(idle_pings, "_LOOK_EVERY_S", 0.01)
    with (
        openenv_server() as behind,
        tls_in_front_of(behind.port, certificate) as port,
        ew.make(f"openenv+https://127.0.0.1:{port}") as env,
    ):
        env.reset(seed=1, options={"context": "y" * 300_000})
        behind.faults.append(reply_and_ping)
        assert len(env.step({"delta": 1})[0]["text"]) == 300_000
        assert behind.talks[0].pongs.wait(30)
        assert env.step({"delta": 1})[0]["text"] == "1"


@pytest.mark.usefixtures("_trusted")
def test_a_connection_that_ends_is_a_fault(certificate: Certificate) -> None:
    with openenv_server() as behind, tls_in_front_of(behind.port, certificate) as port:
        env = ew.make(f"openenv+https://127.0.0.1:{port}", reset_deadline=60)
        env.reset(seed=1)
        behind.talks[0].hang_up()
        assert env.step({"delta": 1})[4]["fault"].kind == "lost"
        env.reset(seed=1)
        assert env.step({"delta": 1})[0]["text"] == "1"
        env.close()


@pytest.mark.parametrize("spaces", ["auto", "json"])
def test_an_untrusted_certificate_is_one_sentence(
    server: RunningServer, how: dict[str, Any], certificate: Certificate, spaces: str
) -> None:
    with (
        tls_in_front_of(server.port, certificate) as port,
        pytest.raises(NotAvailable) as caught,
    ):
        ew.make(f"openenv+https://127.0.0.1:{port}", spaces=spaces, **how)
    why = "is not trusted: self-signed certificate; REQUESTS_CA_BUNDLE names the certificates to trust"
    assert str(caught.value) == f"https://127.0.0.1:{port} {why}"


def test_a_certificate_of_another_host_is_one_sentence(
    server: RunningServer, how: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = self_signed(tmp_path, name="DNS:other.example")
    monkeypatch.setenv(CA_BUNDLES[0], str(other.file))
    with (
        tls_in_front_of(server.port, other) as port,
        pytest.raises(NotAvailable, match=rf"127\.0\.0\.1:{port} is not trusted: IP address mismatch[^\n]*$"),
    ):
        ew.make(f"openenv+https://127.0.0.1:{port}", **how)


@pytest.mark.usefixtures("_trusted")
def test_a_server_without_tls_is_one_sentence(server: RunningServer, how: dict[str, Any]) -> None:
    with pytest.raises(
        ConnectionError, match=rf"^https://127\.0\.0\.1:{server.port} does not answer: [^\n]*SSL"
    ):
        ew.make(f"openenv+https://127.0.0.1:{server.port}", **how)


def test_certificates_of_this_machine_are_trusted(certificate: Certificate) -> None:
    """``SSL_CERT_FILE`` adds some, in a process of its own, as a process reads them once."""
    program = (
        "import sys, envweave_gym\n"
        "with envweave_gym.make(sys.argv[1]) as env:\n"
        "    print(env.reset(seed=1)[0]['text'])\n"
    )
    environ = {name: text for name, text in os.environ.items() if name not in CA_BUNDLES}
    environ["SSL_CERT_FILE"] = str(certificate.file)
    with openenv_server() as behind, tls_in_front_of(behind.port, certificate) as port:
        command = [sys.executable, "-c", program, f"openenv+https://127.0.0.1:{port}"]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
