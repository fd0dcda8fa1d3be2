"""Recognises the hosts of URLs and options that name this machine, without looking up their names."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import urlsplit


def address_in(host: str) -> IPv4Address | IPv6Address | None:
    """Return the address that a host is, or ``None`` for a name; an IPv4 address in IPv6 form is the IPv4 one."""
    try:
        found = ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
    return (isinstance(found, IPv6Address) and found.ipv4_mapped) or found


def is_loopback(host: str) -> bool:
    """Return whether a host is a loopback address, or ``localhost`` or a name below it."""
    address = address_in(host)
    if address is None:
        return host.rstrip(".").rpartition(".")[2].lower() == "localhost"
    return address.is_loopback


def is_loopback_url(url: str) -> bool:
    """Return whether the host of a URL is a loopback one; raise ``ValueError`` for a malformed URL."""
    return is_loopback(urlsplit(url).hostname or "")
