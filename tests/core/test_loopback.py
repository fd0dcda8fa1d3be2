"""Hosts that are this machine."""

from __future__ import annotations

import pytest

from envweave_gym.core.loopback import is_loopback, is_loopback_url


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("[::1]", True),
        ("::ffff:127.0.0.1", True),
        ("localhost", True),
        ("LocalHost.", True),
        ("web.localhost", True),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
        ("localhost.example", False),
        ("127.0.0.1.example", False),
        ("", False),
    ],
)
def test_addresses_and_names_of_this_machine(host: str, expected: bool):
    assert is_loopback(host) is expected
    authority = f"[{host}]" if host.startswith(":") else host
    assert is_loopback_url(f"http://{authority}:8000/x") is expected


def test_a_malformed_url_is_an_error():
    with pytest.raises(ValueError, match="IPv6"):
        is_loopback_url("http://[")
