"""Servers in containers: they play as others do, are boxed in, come back, and leave nothing behind."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import requests
from engines import CORE, Folders, client, folders, ours
from servers import until

import envweave_gym as ew
from envweave_gym.containers import network
from envweave_gym.containers.container_options import ContainerOptions
from envweave_gym.containers.network import NAME
from envweave_gym.containers.sweep import sweep
from envweave_gym.core.faults import InvalidArgument, NotAvailable
from envweave_gym.providers.docker import DockerReplica
from envweave_gym.providers.replica import is_healthy
from envweave_gym.remote.vector import RemoteVectorEnv

__all__ = ["client", "folders"]
COUNTER, LINE = "envweave/Counter-v0", "envweave/LineWorld-v0"


@pytest.fixture(scope="module")
def replica(client: Any) -> Iterator[DockerReplica]:
    """One container that most tests share."""
    replica = DockerReplica(CORE, ContainerOptions(memory="512m", cpus=1.5, pids=200))
    yield replica
    replica.stop()


def inside(replica: DockerReplica, program: str) -> Any:
    """What a Python program prints in the container, as JSON."""
    code, output = replica._container.exec_run(["python", "-c", f"import json, os, socket\n{program}"])
    assert code == 0, output
    return json.loads(output)


def test_an_episode_there_is_the_one_here(replica: DockerReplica) -> None:
    here, there = gym.make(LINE, length=7), gym.make(LINE, length=7, backend=replica.url)
    for env in (here, there):
        env.reset(seed=3)
    for action in (1, 1, 0, 1, 1, 1):
        one, other = here.step(action), there.step(action)
        assert one[0].tolist() == other[0].tolist()
        assert one[1:4] == other[1:4]
        assert one[4]["stream"] == other[4]["stream"]
    there.close()


def test_the_port_is_on_the_loopback_alone(replica: DockerReplica) -> None:
    replica._container.reload()
    (bound,) = replica._container.attrs["NetworkSettings"]["Ports"]["8000/tcp"]
    assert (bound["HostIp"], replica.url) == ("127.0.0.1", f"http://127.0.0.1:{bound['HostPort']}")


def test_the_limits_are_those_asked_for(replica: DockerReplica) -> None:
    given = replica._container.attrs["HostConfig"]
    assert (given["Memory"], given["MemorySwap"]) == (512 << 20, 512 << 20)
    assert (given["NanoCpus"], given["PidsLimit"]) == (1_500_000_000, 200)


def test_processes_inside_are_unprivileged_and_write_to_scratch_only(replica: DockerReplica) -> None:
    found = inside(
        replica,
        "status = dict(line.rstrip().split(':\\t') for line in open('/proc/self/status') if ':\\t' in line)\n"
        "def writes(path):\n"
        "    try: open(path, 'w').close()\n"
        "    except OSError as error: return type(error).__name__, error.strerror\n"
        "    return True\n"
        "print(json.dumps([os.getuid(), status['CapEff'], status['CapBnd'], status['NoNewPrivs'],\n"
        "    [writes(path) for path in ('/srv/x', '/opt/venv/x', '/tmp/x')]]))",
    )
    assert found == [
        *(1000, "0" * 16, "0" * 16, "1"),
        [["OSError", "Read-only file system"], ["OSError", "Read-only file system"], True],
    ]


def test_its_network_leads_nowhere(client: Any, replica: DockerReplica) -> None:
    other = DockerReplica(CORE)
    neighbour, place = other._container.name, other.direct_address()
    assert place is not None
    assert is_healthy(f"http://{place[0]}:{place[1]}")
    found = inside(
        replica,
        "def reached(place, seconds):\n"
        "    try: socket.create_connection(place, seconds).close()\n"
        "    except OSError as error: return type(error).__name__ + str(error.errno or '')\n"
        "    return True\n"
        "def known(name):\n"
        "    try: return socket.gethostbyname(name)\n"
        "    except OSError as error: return type(error).__name__\n"
        "links = sorted(name for _, name in socket.if_nameindex())\n"
        f"found = reached(('198.51.100.1', 80), 9), reached({place!r}, 1), known('example.com')\n"
        "print(json.dumps([links, *found]))",
    )
    other.stop()
    nobody_there = f"OSError{errno.EHOSTUNREACH}"  # with a way out it were a timeout, or an answer
    assert found == [["eth0", "lo"], nobody_there, "TimeoutError", "gaierror"]
    assert list(replica._container.attrs["NetworkSettings"]["Networks"]) == [NAME]
    assert neighbour not in {container.name for container in ours(client)}


@pytest.fixture
def own_network(client: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A name and a label for networks that nobody else uses."""
    name = f"envweave-test-{os.getpid()}"
    monkeypatch.setattr(network, "NAME", name)
    monkeypatch.setattr(network, "OWNER", name)
    yield name
    for one in client.networks.list(names=[f"^{name}$"]):
        one.remove()


def test_a_foreign_network_is_neither_used_nor_removed(client: Any, own_network: str) -> None:
    theirs = client.networks.create(own_network)
    reported = f"has a network '{own_network}' that is not of this package; remove it with 'docker network rm"
    with pytest.raises(NotAvailable, match=reported):
        network.closed_network(client).__enter__()
    network.remove_unused(client)
    assert [one.id for one in client.networks.list(names=[f"^{own_network}$"])] == [theirs.id]


def test_a_network_with_a_way_out_is_replaced_unless_it_is_in_use(client: Any, own_network: str) -> None:
    old = client.networks.create(own_network, labels={own_network: "all"})
    user = client.containers.run(CORE, network=old.id, detach=True)
    with pytest.raises(NotAvailable, match="is of another version of this package, and in use"):
        network.closed_network(client).__enter__()
    user.remove(force=True)
    with network.closed_network(client) as made:
        assert made != old.id
        network.remove_unused(client)  # as when garbage is collected just here
    with network.closed_network(client) as again:
        assert again == made
    network.remove_unused(client)
    assert client.networks.list(names=[f"^{own_network}$"]) == []


def test_a_client_without_the_token_is_refused(replica: DockerReplica) -> None:
    assert requests.get(f"{replica.url}/v1/envs", timeout=10).status_code == 401


def test_stopping_leaves_nothing_behind(client: Any) -> None:
    replica = DockerReplica(CORE)
    name, url = replica._container.name, replica.url
    assert name in {container.name for container in ours(client)}
    replica.stop()
    replica.stop()
    assert name not in {container.name for container in ours(client)}
    with pytest.raises(ConnectionError):
        RemoteVectorEnv(LINE, url, num_envs=2, call_deadline=1.0).reset(seed=0)


def test_leftovers_of_a_killed_owner_are_swept(client: Any) -> None:
    program = (
        "import time\nfrom envweave_gym.providers.docker import DockerReplica\n"
        f"print(DockerReplica({CORE!r})._container.name, flush=True)\ntime.sleep(600)"
    )
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    name = owner.stdout.readline().strip()
    assert name not in sweep(client)
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait(10)
    owner.stdout.close()
    sweep(client)
    until(lambda: not client.containers.list(all=True, filters={"name": name}, ignore_removed=True))


def test_an_image_that_is_not_there_says_how_to_come_by_it(client: Any) -> None:
    with pytest.raises(
        NotAvailable, match=r"^the image envweave-none is not on this machine; .*: make images$"
    ):
        DockerReplica("envweave-none")
    with pytest.raises(NotAvailable, match=r"other:1.0 is not on this machine; .*: docker pull other:1.0$"):
        DockerReplica("other:1.0")
    for image in ("Bad Name", "", "a:b:c"):
        with pytest.raises((NotAvailable, InvalidArgument), match=r"^the image .* cannot be|^image="):
            DockerReplica(image)


@pytest.fixture
def without_server(client: Any, tmp_path: Path) -> Iterator[str]:
    """An image that says something and ends."""
    (tmp_path / "Dockerfile").write_text(
        f'FROM {CORE}\nENTRYPOINT ["python", "-c", "print(\'no server\')"]\n'
    )
    image, _ = client.images.build(path=str(tmp_path), tag="envweave-test-none", rm=True)
    yield "envweave-test-none"
    client.images.remove(image.id, force=True)


def test_the_error_for_an_image_without_a_server_shows_its_log(client: Any, without_server: str) -> None:
    before = {container.name for container in ours(client)}
    reported = (
        "^a container of envweave-test-none ended before its server answered: exit code 0, .* no server; its "
    )
    with pytest.raises(NotAvailable, match=reported):
        DockerReplica(without_server)
    assert {container.name for container in ours(client)} <= before


def test_a_container_without_a_network_is_played_through_a_socket_of_its_owners_alone(
    client: Any, folders: Folders
) -> None:
    others = {container.id for container in ours(client)}
    env = gym.make(COUNTER, backend="docker", network="none", target=50)
    (folder,) = folders()
    assert (folder.stat().st_mode & 0o777, folder.stat().st_uid) == (0o700, os.getuid())
    started = env.reset(seed=1)[0]["count"]
    (container,) = [one for one in ours(client) if one.attrs["HostConfig"]["NetworkMode"] == "none"]
    assert container.attrs["NetworkSettings"]["Ports"] == {}
    assert container.exec_run(["ls", "/sys/class/net"])[1].split() == [b"lo"]
    assert env.step({"delta": 3})[0]["count"] == started + 3
    container.kill()
    assert env.step({"delta": 3})[4]["fault"].kind is ew.FaultKind.LOST
    assert env.reset(seed=1)[0]["count"] == started
    rows = gym.make_vec(LINE, num_envs=4, backend="docker", replicas=2, network="none", image=CORE)
    rows.reset(seed=1)
    rows.close()
    env.close()
    assert {container.id for container in ours(client)} == others


def test_the_folder_of_a_killed_owner_is_removed_with_its_container(client: Any, folders: Folders) -> None:
    program = (
        "import time\nfrom envweave_gym.containers.container_options import ContainerOptions\n"
        "from envweave_gym.providers.docker import DockerReplica\n"
        f"replica = DockerReplica({CORE!r}, ContainerOptions(network='none'))\n"
        "print(replica._container.name, flush=True)\ntime.sleep(600)"
    )
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    name = owner.stdout.readline().strip()
    assert len(folders()) == 1
    owner.kill()
    owner.wait(10)
    owner.stdout.close()
    sweep(client)
    until(lambda: not client.containers.list(all=True, filters={"name": name}, ignore_removed=True))
    until(lambda: not folders())


def test_an_environment_that_reads_data_finds_it_in_its_container(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)  # the user of the server is another
        (Path(folder) / "tasks.json").write_text("[1, 2]")
        monkeypatch.setenv("ENVWEAVE_DATA", folder)
        replica = DockerReplica(CORE, ContainerOptions(data=True))
        found = inside(replica, "print(open(os.environ['ENVWEAVE_DATA'] + '/tasks.json').read())")
        wrong = "try: open('/data/x', 'w')\nexcept OSError as error: print(json.dumps(error.strerror))"
        assert inside(replica, wrong) == "Read-only file system"
    replica.stop()
    assert found == [1, 2]


def test_a_server_with_rights_to_the_engine_reaches_it(client: Any) -> None:
    replica = DockerReplica(CORE, ContainerOptions(docker_sock=True))
    found = inside(
        replica,
        "import http.client\n"
        "asking = http.client.HTTPConnection('localhost')\n"
        "asking.sock = socket.socket(socket.AF_UNIX)\n"
        "asking.sock.connect('/var/run/docker.sock')\n"
        "asking.request('GET', '/_ping')\n"
        "group = os.stat('/var/run/docker.sock').st_gid in (os.getgid(), *os.getgroups())\n"
        "print(json.dumps([asking.getresponse().read().decode(), os.getuid(), group]))",
    )
    replica.stop()
    assert found == ["OK", 1000, True]


def test_the_log_of_a_container_is_kept_short(replica: DockerReplica) -> None:
    given = replica._container.attrs["HostConfig"]["LogConfig"]
    assert given == {"Type": "json-file", "Config": {"max-size": "10m", "max-file": "2"}}
