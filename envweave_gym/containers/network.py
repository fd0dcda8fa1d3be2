"""The network that containers join by default: a Docker bridge that reaches this machine and nothing else.

Docker's ``internal`` networks do the same but publish no ports. In this network the default gateway is an
unused address, so no packet gets beyond the bridge; containers do not reach each other. All containers of a
machine share it, as an engine has addresses for about thirty networks only. It is removed with the last
container.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from ipaddress import ip_network
from typing import Any

from envweave_gym.containers.ownership import OWNER
from envweave_gym.core.faults import NotAvailable
from envweave_gym.os_support.file_lock import file_lock, user_folder

NAME = "envweave"
_BRIDGE = "com.docker.network.bridge"
_OPTIONS = {f"{_BRIDGE}.enable_ip_masquerade": "false", f"{_BRIDGE}.enable_icc": "false"}
_GATEWAY = "DefaultGatewayIPv4"
_thread = threading.local()


@contextmanager
def closed_network(client: Any) -> Generator[str]:
    """Yield the ID of the network, which is created if it does not exist, and cannot be removed during the block."""
    with _locked():
        yield (_found(client) or _made(client)).id


def remove_unused(client: Any) -> None:
    """Remove the network, unless a container uses it or is being created."""
    from docker.errors import APIError

    # Garbage collection may close a container in the block of closed_network(), which holds the lock.
    if getattr(_thread, "holds_lock", False):
        return
    with _locked():
        ours = client.containers.list(all=True, filters={"label": OWNER}, ignore_removed=True)
        if any(one.attrs["HostConfig"]["NetworkMode"] != "none" for one in ours):
            return
        for network in _named(client):
            if _is_ours(network):
                with suppress(APIError):  # a process in a container, with a lock of its own, may use it
                    network.remove()


@contextmanager
def _locked() -> Generator[None]:
    with file_lock(user_folder() / "envweave-network.lock"):
        _thread.holds_lock = True
        try:
            yield
        finally:
            _thread.holds_lock = False


def names_of_ours(client: Any) -> list[str]:
    """Return the network's name in a list, or an empty list if it does not exist."""
    return [network.name for network in _named(client)]


def _named(client: Any) -> list[Any]:
    return client.networks.list(names=[f"^{NAME}$"])


def _found(client: Any) -> Any:
    """Return the existing network, or ``None``; one of ours with other settings is removed.

    Raise ``NotAvailable`` if the network belongs to somebody else, or cannot be removed.
    """
    from docker.errors import APIError

    for network in _named(client):
        if not _is_ours(network):
            raise NotAvailable(
                f"the container engine has a network {NAME!r} that is not of this package; "
                f"remove it with 'docker network rm {NAME}', and give yours another name"
            )
        if _is_closed(network):
            return network
        try:
            network.remove()
        except APIError as error:
            raise NotAvailable(
                f"the network {NAME!r} is of another version of this package, and in use; end what has "
                f"containers in it, or run 'envweave doctor --sweep' ({error.explanation})"
            ) from None
    return None


def _made(client: Any) -> Any:
    """Create the network on a free subnet, with an unused address of that subnet as the default gateway.

    Only the engine knows a free subnet, and a gateway can be set only together with a subnet. So a first network is
    created to learn the subnet, and is removed before the network proper is created on it.
    """
    from docker.types import IPAMConfig, IPAMPool

    given: dict[str, Any] = {"driver": "bridge", "options": _OPTIONS, "labels": {OWNER: "all"}}
    first = client.networks.create(NAME, **given)
    first.reload()
    subnet = first.attrs["IPAM"]["Config"][0]["Subnet"]
    first.remove()
    unused = ip_network(subnet).broadcast_address - 1
    pool = IPAMPool(subnet=subnet, aux_addresses={_GATEWAY: str(unused)})
    return client.networks.create(NAME, ipam=IPAMConfig(pool_configs=[pool]), **given)


def _is_ours(network: Any) -> bool:
    return OWNER in (network.attrs["Labels"] or {})


def _is_closed(network: Any) -> bool:
    options, pools = network.attrs["Options"] or {}, network.attrs["IPAM"]["Config"] or []
    return (
        network.attrs["Driver"] == "bridge"
        and not network.attrs["EnableIPv6"]
        and _OPTIONS.items() <= options.items()
        and len(pools) == 1
        and _GATEWAY in (pools[0].get("AuxiliaryAddresses") or {})
    )
