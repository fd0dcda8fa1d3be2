"""Client of a cluster's API server, for one namespace; finds address and credentials."""

from __future__ import annotations

import logging
import math
import os
import ssl
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from envweave_gym.containers.ownership import OWNER
from envweave_gym.core.faults import InvalidArgument, NotAvailable, nearest, need, shown
from envweave_gym.os_support.process_local import process_cache
from envweave_gym.providers.kubernetes.manifests import CONTAINER, GRACE_S, MANAGED_BY, Manifest

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Folder with the credentials and the namespace that Kubernetes mounts into each Pod."""
KUBECONFIG = "~/.kube/config"
"""Path of the kubeconfig if the variable ``KUBECONFIG`` is not set."""
_REQUEST_TIMEOUT_S = (5, 30)
"""Time limits of connecting to the API server, and of its answer."""
_HANDSHAKE_TIMEOUT_S = 10.0
"""Time limit of each part of connecting to a port of a Pod."""
_PORT_FORWARD_PROTOCOL = "v4.channel.k8s.io"
_STATUS_GONE = 410  # the status for a resource version that is too old
_QUOTA_LAG_S = 10.0
"""Seconds for which a quota still counts a Pod that was deleted."""
_OUR_LABELS = ",".join(f"{key}={value}" for key, value in MANAGED_BY.items())
_log = logging.getLogger(__name__)


class Cluster:
    """Requests to the API server about one namespace of a cluster; each has a time limit.

    Methods raise the errors of the ``kubernetes`` client, ``ApiException`` and urllib3's ``HTTPError``.
    """

    def __init__(self, configuration: Any, namespace: str, inside: bool) -> None:
        """``configuration`` is that of the ``kubernetes`` client.

        ``inside`` says that this process runs in the cluster, where it can reach Pods directly.
        """
        from kubernetes import client

        self.host, self.namespace, self.inside = configuration.host, namespace, inside
        self._configuration = configuration
        self._core: Any = client.CoreV1Api(client.ApiClient(configuration))
        self._is_out, self._freed_at = False, -math.inf

    def create_secret(self, manifest: Manifest) -> None:
        """Create a Secret, unless it exists.

        Its name is random, so one that exists was created by an earlier attempt of the same call.
        """
        from kubernetes.client import ApiException

        try:
            self._core.create_namespaced_secret(self.namespace, manifest, _request_timeout=_REQUEST_TIMEOUT_S)
        except ApiException as error:
            if error.status != 409:
                raise

    def create_pod(self, manifest: Manifest) -> Any:
        """Create a Pod, and return it as the API server describes it."""
        return self._core.create_namespaced_pod(self.namespace, manifest, _request_timeout=_REQUEST_TIMEOUT_S)

    def pod(self, name: str) -> Any:
        """Return a Pod with its current state, or ``None`` if it does not exist."""
        found = self._request(self._core.read_namespaced_pod, name, tolerated=(404,))
        self._is_out = False
        return found

    def warn(self, message: str, *arguments: Any) -> None:
        """Log a warning about the first failure of an outage; further ones are debug messages.

        The outage is over when :meth:`pod` succeeds.
        """
        _log.log(logging.DEBUG if self._is_out else logging.WARNING, message, *arguments)
        self._is_out = True

    def watch(self, name: str, seconds: float) -> Iterator[Any]:
        """Yield a Pod at each change of its state, for ``seconds``; yield ``None`` when it is deleted."""
        from kubernetes.client import ApiException
        from kubernetes.watch import Watch

        try:
            stream: Any = Watch().stream
            changes = stream(
                self._core.list_namespaced_pod,
                self.namespace,
                field_selector=f"metadata.name={name}",
                timeout_seconds=max(1, math.ceil(seconds)),
                _request_timeout=(_REQUEST_TIMEOUT_S[0], seconds + _REQUEST_TIMEOUT_S[1]),
            )
            for event in changes:
                if event is not None:  # the library's sign of an empty or torn line
                    yield None if event["type"] == "DELETED" else event["object"]
        except ApiException as error:
            if error.status != _STATUS_GONE:  # the resource version is too old; the next watch starts anew
                raise

    def logs(self, name: str) -> str:
        """Return the log of the server in a Pod; empty if it has never run.

        The request names the container, because a cluster may inject others into each Pod.
        """
        read = self._core.read_namespaced_pod_log
        return self._request(read, name, tolerated=(400, 404), container=CONTAINER) or ""

    def events(self, name: str) -> list[str]:
        """Return the events of a Pod as texts; an empty list if they cannot be read."""
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        try:
            about = f"involvedObject.name={name}"
            found = self._request(self._core.list_namespaced_event, field_selector=about)
        except (ApiException, HTTPError):  # events only help to explain, and not every user may read them
            return []
        return [f"{event.reason}: {event.message}" for event in found.items]

    def owned(self) -> list[Any]:
        """Return the Pods in the namespace that were started as replicas, by whatever process."""
        return self._request(self._core.list_namespaced_pod, label_selector=f"{_OUR_LABELS},{OWNER}").items

    def is_freeing(self) -> bool:
        """Return whether one of our Pods is being deleted or was deleted within 10 seconds.

        A quota counts such Pods for a while, so that there may soon be room for another.
        """
        if any(pod.metadata.deletion_timestamp for pod in self.owned()):
            self._freed_at = time.monotonic()
        return time.monotonic() - self._freed_at < _QUOTA_LAG_S

    def delete_pod(self, name: str) -> None:
        """Ask for the deletion of a Pod, if it exists; the cluster deletes its Secret too, some seconds later."""
        self._freed_at = time.monotonic()
        delete = self._core.delete_namespaced_pod
        self._request(delete, name, tolerated=(404, 409), grace_period_seconds=GRACE_S)

    def _request(self, request: Any, *name: str, tolerated: Sequence[int] = (), **options: Any) -> Any:
        """Send an idempotent request, and send it again if the kept-alive connection turns out to be closed.

        Return ``None`` if the API server refuses it with one of the ``tolerated`` statuses.
        """
        from kubernetes.client import ApiException
        from urllib3.exceptions import ProtocolError

        options["_request_timeout"] = _REQUEST_TIMEOUT_S
        try:
            try:
                return request(*name, self.namespace, **options)
            except ProtocolError:
                return request(*name, self.namespace, **options)
        except ApiException as error:
            if error.status not in tolerated:
                raise
            return None

    def forwarded(self, name: str, port: int) -> Any:
        """Open a WebSocket to a port of a Pod, through the API server.

        In the protocol ``v4.channel.k8s.io`` channel 0 carries data and channel 1 errors. The library's own
        ``portforward`` connects without a time limit, and waits with ``select``, which is limited to 1024
        descriptors: some 200 connections.
        """
        host = self.host.rstrip("/").replace("http", "ws", 1)
        pod = f"api/v1/namespaces/{quote(self.namespace)}/pods/{quote(name)}"
        return _websocket(self._configuration, f"{host}/{pod}/portforward?ports={port}")


def _websocket(configuration: Any, url: str) -> Any:
    """Open a WebSocket to the API server with the credentials, proxy and TLS options of the configuration."""
    from kubernetes.client import ApiException
    from kubernetes.stream.ws_client import websocket_proxycare
    from websocket import (
        WebSocket,
        WebSocketBadStatusException,
        WebSocketException,
        WebSocketTimeoutException,
    )

    header = {one["key"]: one["value"] for one in configuration.auth_settings().values()}
    options: dict[str, Any] = {
        "header": header,
        "subprotocols": [_PORT_FORWARD_PROTOCOL],
        "timeout": _HANDSHAKE_TIMEOUT_S,
    }
    if configuration.proxy or configuration.proxy_headers:
        websocket_proxycare(options, configuration, url, {})
    connection = WebSocket(sslopt=_tls(configuration), skip_utf8_validation=True)
    try:
        connection.connect(url, **options)
    except WebSocketBadStatusException as error:
        refused = ApiException(status=error.status_code, reason=str(error))
        refused.body = (error.resp_body or b"").decode(errors="replace")
        raise refused from None
    except (WebSocketTimeoutException, TimeoutError):
        raise TimeoutError(
            f"the cluster has not forwarded its port within {_HANDSHAKE_TIMEOUT_S:g} s"
        ) from None
    except WebSocketException as error:
        raise ConnectionError(str(error)) from None
    return connection


def _tls(configuration: Any) -> dict[str, Any]:
    """Return the TLS options of a WebSocket, equal to those that the ``kubernetes`` client uses for HTTP."""
    import certifi

    options: dict[str, Any] = {"cert_reqs": ssl.CERT_NONE}
    if configuration.verify_ssl:
        trusted = configuration.ssl_ca_cert or certifi.where()
        options = {"cert_reqs": ssl.CERT_REQUIRED, "ca_certs": trusted}
        if configuration.assert_hostname is not None:
            options["check_hostname"] = configuration.assert_hostname
    own = {
        "certfile": configuration.cert_file,
        "keyfile": configuration.key_file,
        "server_hostname": configuration.tls_server_name,
    }
    return options | {name: value for name, value in own.items() if value}


def is_known() -> bool:
    """Return whether a cluster is configured: by a kubeconfig, or because this process runs in a Pod."""
    return _is_inside() or any(path.is_file() for path in _kubeconfigs())


def cluster(context: str | None = None, namespace: str | None = None) -> Cluster:
    """Return the cluster to use: that of ``context`` or ``KUBECONFIG``, else this Pod's, else ``~/.kube/config``.

    ``namespace`` is by default that of the context or of this Pod. Raise ``NotAvailable`` if no cluster is
    configured.
    """
    need("kubernetes", "kubernetes", "backend='kubernetes'")
    files = os.environ.get("KUBECONFIG", "")
    if not files and context is None and _is_inside():
        return _inside(namespace)
    paths = _kubeconfigs()
    written = tuple(path.stat().st_mtime_ns for path in paths if path.is_file())
    if not written:
        raise NotAvailable(
            f"no cluster is known: there is no kubeconfig at {files or KUBECONFIG}, and this is no Pod of "
            "one; set KUBECONFIG to its path"
        )
    return _by_kubeconfig(os.pathsep.join(map(str, paths)), written, context, namespace)


def _kubeconfigs() -> list[Path]:
    files = os.environ.get("KUBECONFIG") or KUBECONFIG
    return [Path(path).expanduser() for path in files.split(os.pathsep) if path]


def _is_inside() -> bool:
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST")) and (ACCOUNT / "token").is_file()


@process_cache(maxsize=8)
def _inside(namespace: str | None) -> Cluster:
    """Return the cluster of this Pod; cached per process, because forked processes must not share connections."""
    from kubernetes import client, config

    configuration = client.Configuration()
    with _configured("the service account of this Pod"):
        config.load_incluster_config(client_configuration=configuration)
        configuration.retries = False  # each would be logged
        return Cluster(configuration, namespace or (ACCOUNT / "namespace").read_text().strip(), True)


@process_cache(maxsize=8)
def _by_kubeconfig(
    files: str, written: tuple[int, ...], context: str | None, namespace: str | None
) -> Cluster:
    """Return the cluster of a kubeconfig; cached per process and modification time of the files.

    ``files`` are paths joined like ``PATH``, and ``written`` their modification times.
    """
    from kubernetes import client, config

    configuration = client.Configuration()
    with _configured(f"the kubeconfig {files}"):
        known: Any = config.list_kube_config_contexts(files)
        contexts, current = known
        names = {str(one["name"]): one for one in contexts}
        if context is not None and context not in names:
            raise InvalidArgument(
                f"context={shown(context)} is not in the kubeconfig {files}{nearest(context, names)}; "
                f"there are {', '.join(sorted(names))}"
            )
        chosen: Any = names[context] if context is not None else current
        config.load_kube_config(files, context, client_configuration=configuration)
        if not configuration.host.startswith(("http://", "https://")):
            raise ValueError(f"its server is {shown(configuration.host)}, which is no URL")
        configuration.retries = False  # each would be logged
        return Cluster(configuration, namespace or chosen["context"].get("namespace") or "default", False)


@contextmanager
def _configured(what: str) -> Generator[None]:
    """Turn any error in the block into ``NotAvailable``; ``what`` names the configuration that the block reads.

    A kubeconfig is written by hand, so any error may occur.
    """
    from kubernetes.config import ConfigException
    from yaml import YAMLError

    try:
        yield
    except InvalidArgument:
        raise
    except (ConfigException, YAMLError, OSError, ValueError, TypeError, AttributeError, LookupError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise NotAvailable(f"{what} cannot be used: {reason}; 'kubectl config view' shows it") from None
