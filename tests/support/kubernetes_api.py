"""A small API server of Kubernetes over HTTP, whose Pods are real server processes on loopback addresses.

What it is asked and answers is what the real one is and does, as far as the provider goes: Pods and Secrets
are created, read, listed, watched and deleted, what is owned goes with its owner, and ports are forwarded
through WebSockets. Whatever it is given is validated against the schemas of Kubernetes.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import math
import os
import random
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import IO, Any

import kubernetes_validate
import requests
from kubernetes_http import CLUSTER_TOKEN, Handler, HttpServer, Refused

VERSION = "1.37"
NODE_MEMORY = 64 << 30
KINDS = {"pods": "Pod", "secrets": "Secret", "events": "Event"}

SERVER = "envweave-core"
MISSING, CRASHING, HUNGRY, SILENT = (f"{name}:1" for name in ("no", "crash", "oom", "silent"))
"""Images: one that cannot be pulled, and others whose programs do as they are called."""
_PROGRAMS = {
    CRASHING: "print('no server'); raise SystemExit(3)",
    HUNGRY: "raise SystemExit(137)",
    SILENT: "import time; time.sleep(600)",
}
_CAUSE = "rpc error: code = Unknown desc = Error response from daemon: pull access denied for no"
_WAITING = {
    MISSING: [("ErrImagePull", _CAUSE), ("ImagePullBackOff", 'Back-off pulling image "no:1"')],
}
"""What containers wait for that never start, one after the other; only the first has the cause."""
_SIDECAR = {"name": "proxy", "image": "registry.example/proxy:1"}


class Node:
    """Runs the container of one Pod."""

    def __init__(self, pod: dict[str, Any], token: str, ip: str) -> None:
        container = _ours(pod)
        program = _PROGRAMS.get(container["image"])
        server = ["-m", "envweave_gym_server", "--host", ip, "--port", "8000", *container.get("args", ())]
        self.ip, self._probe = ip, container["readinessProbe"]["httpGet"]
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop
        self.process = subprocess.Popen(
            [sys.executable, *(server if program is None else ["-c", program])],
            env={"ENVWEAVE_TOKEN": token, "PYTHONPATH": str(Path(__file__).parent)},
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )

    def is_ready(self) -> bool:
        try:
            url = f"http://{self.ip}:{self._probe['port']}{self._probe['path']}"
            return requests.get(url, timeout=1).status_code == 200
        except requests.RequestException:
            return False

    def log(self) -> bytes:
        with contextlib.suppress(ValueError):
            self._log.seek(0)
            return self._log.read()
        return b""

    def stop(self, grace: float) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(grace)
        self.kill()
        self._log.close()

    def kill(self) -> None:
        """End all its processes, as the end of the first one of a container does."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class KubernetesApi:
    """What is in the cluster, and what becomes of it."""

    is_real = False
    starts_within = 1.0
    """A Pod starts within so many seconds: its server may not be ready by then."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.namespaces = {"default", "team"}
        self.forbidden: set[tuple[str, str]] = set()
        """Verbs and resources, as in a Role."""
        self.behave()
        self.asked: list[tuple[str, str]] = []
        """Those that were asked for."""
        self._objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        self._nodes: dict[str, Node] = {}
        self._changes: list[tuple[str, dict[str, Any]]] = []
        self._changed, self._is_over = threading.Condition(threading.RLock()), False
        self._threads: list[threading.Thread] = []
        net = f"127.{random.SystemRandom().randrange(64, 250)}.{random.SystemRandom().randrange(250)}"
        self._ips = itertools.cycle(f"{net}.{last}" for last in range(1, 255))
        self._server = HttpServer(("127.0.0.1", 0), Handler)
        self._server.api = self
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self._server.server_address[1]}"
        self._spawn(lambda: self._server.serve_forever(0.05))

    def behave(self) -> None:
        """Be a cluster without quotas, limits, delays and outages."""
        self.forbidden.clear()
        self.terminating: set[str] = set()
        """Namespaces that are being deleted."""
        self.is_for_roles_only = False
        """Whether whoever asks has rights in namespaces that there are, and in no others."""
        self.quota = math.inf
        """The number of Pods that a namespace may have; those count that are being deleted."""
        self.has_sidecars = False
        """Whether another container is injected into each Pod."""
        self.lag = 0.0
        """So many seconds after its end a Pod is still said to run, as kubelets tell it late."""
        self.ends_in = 0.0
        """So many seconds after its container has exited a deleted Pod is gone: really 3 to 15."""
        self.cuts = 0
        """So many watches are cut in the middle of their first event."""
        self._refusals: list[tuple[str, str, Refused]] = []

    def refuse(self, verb: str, what: str, *refusals: Refused) -> None:
        """Answer the next requests of this kind so, one after the other."""
        self._refusals += [(verb, what, one) for one in refusals]

    def kubeconfig(self, path: Path, **changes: Any) -> Path:
        """A kubeconfig that leads here, with two contexts."""
        context = {"cluster": "here", "user": "me"}
        contexts = [
            {"name": "here", "context": context},
            {"name": "team", "context": {**context, "namespace": "team"}},
        ]
        document: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "contexts": contexts,
            "clusters": [{"name": "here", "cluster": {"server": self.url}}],
            "users": [{"name": "me", "user": {"token": CLUSTER_TOKEN}}],
        }
        path.write_text(json.dumps(document | changes))
        return path

    # What tests do to it and ask it

    def names(self, resource: str, namespace: str = "default") -> set[str]:
        with self._changed:
            return {name for kind, where, name in self._objects if (kind, where) == (resource, namespace)}

    def object(self, resource: str, name: str, namespace: str = "default") -> dict[str, Any]:
        with self._changed:
            return deepcopy(self._objects[resource, namespace, name])

    def processes(self) -> list[int]:
        """The containers that run."""
        with self._changed:
            return [node.process.pid for node in [*self._nodes.values()] if node.process.poll() is None]

    def kill(self, name: str) -> None:
        """Let the server of a Pod die."""
        self._nodes[name].kill()

    def end(self, name: str, reason: str, message: str) -> None:
        """Let the cluster end a Pod, as it does with one that is evicted."""
        with self._changed:
            status = self._objects["pods", "default", name]["status"]
            status |= {"phase": "Failed", "reason": reason, "message": message}
            status["conditions"], status["containerStatuses"] = [], []
            self._tell("MODIFIED", self._objects["pods", "default", name])
        self._nodes[name].kill()

    def close(self) -> None:
        """End it and all that runs in it."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self._server.shutdown()
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive(), thread
        self._server.hang_up()
        self._server.server_close()

    # What it is asked for

    def admit(self, verb: str, what: str, namespace: str, name: str) -> None:
        """Refuse what may not be done, in the words of the real one."""
        for one in self._refusals:
            if one[:2] == (verb, what):
                self._refusals.remove(one)
                raise one[2]
        is_there = namespace in self.namespaces
        if (verb, what) in self.forbidden or (self.is_for_roles_only and not is_there):
            subject = what.partition("/")[0] + (f' "{name}"' if name and verb != "create" else "")
            said = (
                f'{subject} is forbidden: User "me" cannot {verb} resource "{what}" in API group "" in the '
                f'namespace "{namespace}"'
            )
            raise Refused(403, "Forbidden", said)
        if verb == "create" and not is_there:
            raise Refused(404, "NotFound", f'namespaces "{namespace}" not found')
        if verb == "create" and namespace in self.terminating:
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            raise Refused(403, "Forbidden", f'{what} "{name}" is forbidden: {why}')
        used = len(self.names("pods", namespace))
        if (verb, what) == ("create", "pods") and used >= self.quota:
            why = f"exceeded quota: one, requested: pods=1, used: pods={used}, limited: pods={self.quota}"
            raise Refused(403, "Forbidden", f'pods "{name}" is forbidden: {why}')

    def is_cut(self) -> bool:
        """Whether the watch that begins now is cut."""
        self.cuts -= 1
        return self.cuts >= 0

    def create(self, resource: str, namespace: str, body: dict[str, Any]) -> dict[str, Any]:
        kubernetes_validate.validate(body, VERSION, strict=True)
        name, made = body["metadata"]["name"], deepcopy(body)
        with self._changed:
            if (resource, namespace, name) in self._objects:
                raise Refused(409, "AlreadyExists", f'{resource} "{name}" already exists')
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            made["metadata"] |= {"namespace": namespace, "uid": str(uuid.uuid4()), "creationTimestamp": now}
            if resource == "secrets":
                given = made.pop("stringData", {})
                made["data"] = {key: base64.b64encode(text.encode()).decode() for key, text in given.items()}
            self._objects[resource, namespace, name] = made
            if resource == "pods" and self.has_sidecars:
                made["spec"]["containers"].insert(0, dict(_SIDECAR))
            if resource == "pods":
                made["status"] = {"phase": "Pending"}
                self._tell("ADDED", made)
                self._spawn(lambda: self._run(namespace, name))
            return deepcopy(made)

    def read(self, resource: str, namespace: str, name: str) -> dict[str, Any]:
        with self._changed:
            found = self._objects.get((resource, namespace, name))
            if found is None:
                raise Refused(404, "NotFound", f'{resource} "{name}" not found')
            return deepcopy(found)

    def listed(self, resource: str, namespace: str, query: dict[str, str]) -> dict[str, Any]:
        with self._changed:
            items = [
                deepcopy(one)
                for (kind, where, _), one in self._objects.items()
                if (kind, where) == (resource, namespace) and _is_selected(one, query)
            ]
        kind = f"{KINDS[resource]}List"
        return {"apiVersion": "v1", "kind": kind, "metadata": {"resourceVersion": "1"}, "items": items}

    def watched(self, namespace: str, query: dict[str, str]) -> Iterator[dict[str, Any]]:
        """What there is, and what changes."""
        end = time.monotonic() + float(query.get("timeoutSeconds", 60))
        with self._changed:
            seen = len(self._changes)
            found = [
                {"type": "ADDED", "object": one} for one in self.listed("pods", namespace, query)["items"]
            ]
        yield from found
        while time.monotonic() < end and not self._is_over:
            with self._changed:
                if len(self._changes) == seen:
                    self._changed.wait(0.2)
                changes, seen = self._changes[seen:], len(self._changes)
            for kind, pod in changes:
                if pod["metadata"]["namespace"] == namespace and _is_selected(pod, query):
                    yield {"type": kind, "object": pod}

    def delete(self, resource: str, namespace: str, name: str) -> dict[str, Any]:
        with self._changed:
            found = self.read(resource, namespace, name)
            if resource == "pods":
                now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                self._objects["pods", namespace, name]["metadata"]["deletionTimestamp"] = now
                self._tell("MODIFIED", self._objects["pods", namespace, name])
            else:
                del self._objects[resource, namespace, name]
        return found

    def log(self, namespace: str, name: str, container: str | None) -> bytes:
        containers = [one["name"] for one in self.read("pods", namespace, name)["spec"]["containers"]]
        if container is None and len(containers) > 1:
            choice = f"choose one of: [{' '.join(containers)}]"
            raise Refused(400, "BadRequest", f"a container name must be specified for pod {name}, {choice}")
        if name not in self._nodes:
            raise Refused(400, "BadRequest", f'container "server" in pod "{name}" is waiting to start')
        return self._nodes[name].log()

    def place_of(self, namespace: str, name: str) -> str:
        return self.read("pods", namespace, name)["status"].get("podIP", "127.0.0.1")

    # What the cluster does with a Pod

    def _run(self, namespace: str, name: str) -> None:
        """Schedule it, run it, probe it, and bury it."""
        pod = self._objects["pods", namespace, name]
        container = _ours(pod)
        if int(container["resources"]["requests"]["memory"]) > NODE_MEMORY:
            self._say(pod, name, "FailedScheduling", "0/1 nodes are available: 1 Insufficient memory.")
            self._set(pod, conditions=[_condition("PodScheduled", "False", "Unschedulable", self._last)])
        elif container["image"] in _WAITING:
            for reason, message in _WAITING[container["image"]]:
                is_first = reason == "ErrImagePull"
                said = f'Failed to pull image "no:1": {message}' if is_first else message
                self._say(pod, name, "Failed" if is_first else "BackOff", said)
                self._set(pod, **_container(waiting={"reason": reason, "message": message}))
                time.sleep(0.1)
        else:
            self._serve(namespace, name, pod)
        while not self._is_over and "deletionTimestamp" not in pod["metadata"]:
            time.sleep(0.02)
        if name in self._nodes:
            node = self._nodes.pop(name)
            node.stop(pod["spec"]["terminationGracePeriodSeconds"])
            self._exit(pod, node.process.returncode, "Completed")
        end = time.monotonic() + self.ends_in
        while time.monotonic() < end and not self._is_over:
            time.sleep(0.02)
        self._bury(namespace, name, pod)

    def _serve(self, namespace: str, name: str, pod: dict[str, Any]) -> None:
        began, limit = time.monotonic(), pod["spec"]["activeDeadlineSeconds"]
        reference = _ours(pod)["env"][0]["valueFrom"]["secretKeyRef"]
        while ("secrets", namespace, reference["name"]) not in self._objects:
            self._set(
                pod, **_container(waiting={"reason": "CreateContainerConfigError", "message": "secret"})
            )
            if self._is_over or "deletionTimestamp" in pod["metadata"]:
                return
            time.sleep(0.02)
        data = self._objects["secrets", namespace, reference["name"]]["data"]
        ip = next(self._ips)
        node = self._nodes[name] = Node(pod, base64.b64decode(data[reference["key"]]).decode(), ip)
        running = _container(running={"startedAt": pod["metadata"]["creationTimestamp"]})
        self._set(pod, phase="Running", podIP=ip, **running)
        was_ready = False
        while not self._is_over and "deletionTimestamp" not in pod["metadata"]:
            if node.process.poll() is not None:
                if pod["status"]["phase"] != "Failed":
                    time.sleep(self.lag)
                    is_hungry = _ours(pod)["image"] == HUNGRY
                    self._exit(pod, node.process.returncode, "OOMKilled" if is_hungry else "Error")
                    self._set(pod, phase="Failed", conditions=[_condition("Ready", "False")])
                return
            if time.monotonic() - began > limit:
                self._set(pod, phase="Failed", reason="DeadlineExceeded", message="too long", conditions=[])
                node.kill()
            elif not was_ready and (was_ready := node.is_ready()):
                self._set(pod, conditions=[_condition("Ready", "True")])
            time.sleep(0.02)

    def _exit(self, pod: dict[str, Any], code: int, reason: str) -> None:
        """Say that the container has exited; the phase of the Pod follows, unless it is deleted."""
        code = 128 - code if code < 0 else code
        self._set(pod, **_container(terminated={"exitCode": code, "reason": reason}))

    def _bury(self, namespace: str, name: str, pod: dict[str, Any]) -> None:
        with self._changed:
            self._tell("DELETED", self._objects.pop(("pods", namespace, name)))
            for key, one in list(self._objects.items()):
                owners = one["metadata"].get("ownerReferences", ())
                if pod["metadata"]["uid"] in {owner["uid"] for owner in owners}:
                    self.delete(*key)

    def _say(self, pod: dict[str, Any], name: str, reason: str, message: str) -> None:
        self._last = message
        about = {"kind": "Pod", "name": name, "namespace": pod["metadata"]["namespace"]}
        with self._changed:
            called = f"{name}.{len(self._objects)}"
            self._objects["events", about["namespace"], called] = {
                "metadata": {"name": called, "namespace": about["namespace"]},
                "involvedObject": about,
                "reason": reason,
                "message": message,
            }

    def _set(self, pod: dict[str, Any], **status: Any) -> None:
        with self._changed:
            pod["status"] |= status
            self._tell("MODIFIED", pod)

    def _tell(self, kind: str, pod: dict[str, Any]) -> None:
        pod["metadata"]["resourceVersion"] = str(len(self._changes) + 2)
        self._changes.append((kind, deepcopy(pod)))
        self._changed.notify_all()

    def _spawn(self, work: Any) -> None:
        thread = threading.Thread(target=work, daemon=True)
        self._threads.append(thread)
        thread.start()


def _condition(kind: str, status: str, reason: str = "", message: str = "") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def _ours(pod: dict[str, Any]) -> dict[str, Any]:
    """The container of the server; others may be injected."""
    (found,) = [one for one in pod["spec"]["containers"] if one["name"] == "server"]
    return found


def _container(**state: Any) -> dict[str, Any]:
    one = {"name": "server", "image": "", "imageID": "", "ready": False, "restartCount": 0, "state": state}
    return {"containerStatuses": [one]}


def _is_selected(found: dict[str, Any], query: dict[str, str]) -> bool:
    for selector in filter(None, query.get("fieldSelector", "").split(",")):
        path, _, wanted = selector.partition("=")
        value: Any = found
        for part in path.split("."):
            value = value[part]
        if value != wanted:
            return False
    for selector in filter(None, query.get("labelSelector", "").split(",")):
        key, equals, wanted = selector.partition("=")
        labels = found["metadata"].get("labels", {})
        if key not in labels or (equals and labels[key] != wanted):
            return False
    return True
