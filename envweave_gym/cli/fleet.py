"""``envweave fleet``: several servers that are kept up together, in the foreground or in the background."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from envweave_gym.cli.fleet_files import (
    FleetFile,
    find,
    find_all,
    log_file,
    own_token_file,
    read_token,
    taken,
    token_in,
)
from envweave_gym.cli.tables import print_json, screen_width, table
from envweave_gym.core.faults import EnvweaveError, InvalidArgument, NotAvailable, shown

_PATIENCE = 90.0
"""So many seconds a fleet may take to end."""
_PODS_END_WITHIN_S = 30.0
"""Measured on a real cluster: a Pod is gone 3 to 15 s after its deletion, later if its node pulls images."""
_EVERY = 0.5
_ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_IS_ENDING = (
    b"envweave: the fleet is ending; once more ends this command at once, and leaves what is still there to "
    b"'envweave doctor --sweep'\n"
)
_PLACE = ("context", "namespace")
_WITH_IMAGES = ("docker", "kubernetes")
_OTHERWISE = {
    "backend": "--backend NAME",
    "replicas": "--replicas N",
    "ids": "the IDs without a name",
    "token": "--token-file PATH",
}
"""What is said of a fleet in another way."""
_PROGRAM = "import sys; from envweave_gym.cli import main; sys.exit(main())"


def add_options(
    parser: argparse.ArgumentParser, add: Callable[..., Any], option: Callable[[str], Any]
) -> None:
    """Tell a parser its commands; ``add`` makes one of them, and ``option`` reads ``NAME=VALUE``."""
    commands = parser.add_subparsers(metavar="up|status|down", required=True)
    up = add(commands, "up", "Start a fleet, and keep it up until Ctrl-C, SIGTERM or 'envweave fleet down'.")
    up.set_defaults(action=_up)
    up.add_argument("ids", metavar="ID", nargs="*", help="what to serve; without any, all that is there")
    up.add_argument("--backend", default="docker", help="docker (by default), subprocess, kubernetes or ray")
    up.add_argument("--replicas", metavar="N", type=int, default=1, help="so many servers (1)")
    up.add_argument("--image", help="the image they are in; by default that of the IDs")
    up.add_argument("--memory", metavar="SIZE", help="so much memory each may take, like 512m")
    up.add_argument("--cpus", metavar="N", type=float, help="so many cores' worth of time each may take")
    up.add_argument(
        "--option",
        metavar="NAME=VALUE",
        type=option,
        action="append",
        default=[],
        help="another option of the backend; the value is JSON, or else text; may be repeated",
    )
    up.add_argument(
        "--docker-sock",
        dest="option",
        action="append_const",
        const=("docker_sock", True),
        help="let them use the container engine, which is as good as being root on this machine",
    )
    up.add_argument(
        "--token-file", metavar="PATH", help="the file with the token, written where there is none"
    )
    up.add_argument("--detach", action="store_true", help="keep it up in the background, and return")
    up.add_argument("--background", action="store_true", help=argparse.SUPPRESS)
    status = add(commands, "status", "Show how the replicas are; exit code 1 unless all are healthy.")
    status.set_defaults(action=_status)
    down = add(commands, "down", "End a fleet, and wait until all of it is gone.")
    down.set_defaults(action=_down)
    for command, default in ((up, "default"), (status, None), (down, "default")):
        known = f" ({default})" if default else "; all of them by default"
        command.add_argument("--name", default=default, help=f"what the fleet is called{known}")


def run(args: argparse.Namespace) -> int:
    """Do as one of the commands says."""
    return args.action(args)


# up


def _up(args: argparse.Namespace) -> int:
    old = find(args.name)
    if old is not None:
        if old.is_kept():
            raise taken(args.name)
        _say_cleaned(old, sys.stderr)
    return _detached(args) if args.detach else _kept_up(args)


def _kept_up(args: argparse.Namespace) -> int:
    """Be the process that keeps it up."""
    from envweave_gym.providers.fleet import Fleet

    token_file = Path(args.token_file or own_token_file(args.name)).absolute()
    place = {key: str(value) for key, value in args.option if key in _PLACE and value is not None}
    known = FleetFile(name=args.name, backend=args.backend, token_file=str(token_file), place=place)
    output = _output(args)
    with _interruptible():
        known.claim()
        try:
            token = token_in(token_file)
            with Fleet(args.backend, args.replicas, ids=args.ids, token=token, **_options(args)) as fleet:
                _keep(known, fleet, lambda: _announce(known, args, output))
        finally:
            known.remove()
    return 0


@contextmanager
def _interruptible() -> Generator[None]:
    """Whoever tells this process to end interrupts it as Ctrl-C does, but once, so that it ends in peace.

    Who says so again hears that it does, and is obeyed at once the third time.
    """

    def interrupt(*_: Any) -> None:
        for one in caught:
            signal.signal(one, remind)
        raise KeyboardInterrupt

    def remind(*_: Any) -> None:
        for one in caught:
            signal.signal(one, signal.SIG_DFL)
        os.write(2, _IS_ENDING)  # print may be in the middle of a line

    caught = [one for one in _ENDS if signal.getsignal(one) != signal.SIG_IGN]
    before = {one: signal.signal(one, interrupt) for one in caught}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _options(args: argparse.Namespace) -> dict[str, Any]:
    """What the fleet is told beside the number of its replicas."""
    from envweave_gym.registry.catalog import cards

    options: dict[str, Any] = dict(args.option)
    for name in options.keys() & _OTHERWISE.keys():
        raise InvalidArgument(f"--option {name}=… is no option of a backend; give {_OTHERWISE[name]}")
    images = {card.image for card in map(cards().get, args.ids) if card is not None}
    has_images = args.backend.startswith(_WITH_IMAGES) and "image" not in options
    image = args.image or (images.pop() if len(images) == 1 and has_images else None)
    given = {"image": image, "memory": args.memory, "cpus": args.cpus}
    return options | {name: value for name, value in given.items() if value is not None}


def _announcement(known: FleetFile, args: argparse.Namespace) -> str:
    """Where it is, and how it is used."""
    env_id = args.ids[0] if args.ids else "envweave/Counter-v0"
    use = f"gymnasium.make({env_id!r}, backend={known.urls}, token={f'file:{known.token_file}'!r})"
    if args.json:
        told = {"name": known.name, "urls": known.urls, "token_file": known.token_file, "python": use}
        return json.dumps(told, indent=2)
    count = f"{len(known.urls)} replica{'' if len(known.urls) == 1 else 's'}"
    return "\n".join(
        [
            f"fleet {known.name} is up: {count} of backend {known.backend}",
            *known.urls,
            f"token in {known.token_file}",
            use,
            f"{'' if args.background else 'Ctrl-C or '}'envweave fleet down --name {known.name}' ends it",
        ]
    )


def _output(args: argparse.Namespace) -> Any:
    """Where the announcement goes: one in the background has a pipe for it, which no server inherits."""
    if not args.background:
        return sys.stdout
    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return pipe


def _announce(known: FleetFile, args: argparse.Namespace, output: Any) -> None:
    print(_announcement(known, args), file=output, flush=True)
    if args.background:
        output.close()


def _keep(known: FleetFile, fleet: Any, announce: Callable[[], None]) -> None:
    """Say that it is up, and write down what changes, until somebody interrupts."""
    try:
        known.backend, known.urls = fleet.backend, [str(url) for url in fleet.urls]
        _note(known, fleet)
        announce()
        while True:
            time.sleep(_EVERY)
            _note(known, fleet)
    except KeyboardInterrupt:
        return


def _note(known: FleetFile, fleet: Any) -> None:
    found = fleet.restarts, dict(fleet.problems)
    if found != (known.restarts, known.problems):
        known.restarts, known.problems = found
        known.save()


def _detached(args: argparse.Namespace) -> int:
    """Have another process keep it up, and wait until it says where it is, or what is wrong."""
    command = [sys.executable, "-c", _PROGRAM, "fleet", "up", "--background", *_words(args)]
    log = log_file(args.name)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as errors:
        keeper = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
    assert keeper.stdout is not None
    with keeper.stdout:
        try:
            told = keeper.stdout.read().decode()
        except KeyboardInterrupt:
            keeper.terminate()
            try:
                with suppress(subprocess.TimeoutExpired):
                    keeper.wait(_PATIENCE)
            finally:
                log.unlink(missing_ok=True)
            raise
    if told:
        keeper.returncode = 0  # it goes on without this process
        print(told, end="")
        return 0
    code = keeper.wait()
    print(log.read_text(errors="replace").strip() or f"envweave: exit code {code}", file=sys.stderr)
    log.unlink(missing_ok=True)
    return code if code > 0 else 1


def _words(args: argparse.Namespace) -> list[str]:
    """The options, as they are written on a command line."""
    words = [f"--option={name}={json.dumps(value)}" for name, value in args.option]
    for name in ("backend", "replicas", "image", "memory", "cpus", "token_file", "name"):
        if (value := getattr(args, name)) is not None:
            words.append(f"--{name.replace('_', '-')}={value}")
    words += [f"--{name}" for name in ("json", "debug") if getattr(args, name)]
    return [*words, "--", *args.ids]


# status


def _status(args: argparse.Namespace) -> int:
    fleets, wrong = find_all() if args.name is None else ([_named(args.name)], [])
    told = [_described(known) for known in fleets]
    for one in wrong:
        print(f"envweave: {one}", file=sys.stderr)
    if args.json:
        print_json({"fleets": told, "unreadable": wrong})
    elif told:
        rows = [row for one in told for row in _rows(one)]
        print(table([("FLEET", "STATE", "SESSIONS", "RESTARTS", "URL"), *rows], screen_width()))
    elif not wrong:
        print("no fleet is up; 'envweave fleet up' starts one")
    return 0 if not wrong and all(one["state"] == "up" for one in told) else 1


def _named(name: str) -> FleetFile:
    known = find(name)
    if known is None:
        raise InvalidArgument(
            f"there is no fleet {shown(name)}; 'envweave fleet status' lists those there are"
        )
    return known


def _described(known: FleetFile) -> dict[str, Any]:
    """How a fleet is; of one whose keeper is gone, what was left behind is removed."""
    from envweave_gym.providers.fleet import statuses

    told: dict[str, Any] = {"name": known.name, "backend": known.backend, "pid": known.pid}
    told |= {"token_file": known.token_file, "replicas": [], "removed": [], "unseen": []}
    if not known.is_kept():
        return told | {"state": "gone"} | _clean(known)
    if not known.urls:
        return told | {"state": "starting"}
    found = statuses(known.urls, _token_of(known))
    for one, restarts in zip(found, known.restarts, strict=True):
        problem = known.problems.get(one.url, "")
        state = "unhealthy" if problem else one.state
        told["replicas"].append(
            {
                "url": one.url,
                "state": state,
                "sessions": one.sessions,
                "restarts": restarts,
                "problem": problem,
            }
        )
    well = all(one["state"] == "healthy" for one in told["replicas"])
    return told | {"state": "up" if well else "unwell"}


def _token_of(known: FleetFile) -> str | None:
    """Its token; without one its replicas do not tell how many sessions they have."""
    try:
        return read_token(Path(known.token_file))
    except InvalidArgument as error:
        print(f"envweave: warning: fleet {known.name}: {error}", file=sys.stderr)
        return None


def _rows(told: dict[str, Any]) -> list[tuple[str, ...]]:
    if told["state"] == "gone":
        killed = f"process {told['pid']} was killed; removed: {_removed(told)}"
        return [(told["name"], "gone", "", "", killed)]
    if told["state"] == "starting":
        return [(told["name"], "starting", "", "", "")]
    return [
        (
            told["name"],
            one["state"],
            "?" if one["sessions"] is None else str(one["sessions"]),
            str(one["restarts"]),
            f"{one['url']} {one['problem']}".strip(),
        )
        for one in told["replicas"]
    ]


# down


def _down(args: argparse.Namespace) -> int:
    known = _named(args.name)
    if not known.is_kept():
        if not args.json:
            _say_cleaned(known, sys.stdout)
        else:
            print_json({"name": known.name, **_clean(known)})
        return 0
    os.kill(known.pid, signal.SIGTERM)
    deadline = time.monotonic() + _PATIENCE
    while known.is_there() and known.is_kept():
        if time.monotonic() > deadline:
            raise NotAvailable(
                f"fleet {known.name} has not ended within {_PATIENCE:g} s; see 'envweave fleet status', "
                f"or kill process {known.pid} and run 'envweave doctor --sweep'"
            )
        time.sleep(0.02)
    log_file(known.name).unlink(missing_ok=True)
    ending, unseen = _still_ending(known)
    if args.json:
        print_json({"name": known.name, "removed": known.urls, "ending": ending, "unseen": unseen})
    else:
        more = f"; its Pods are still being deleted: {', '.join(ending)}" if ending else ""
        more += "".join(f"; {why}" for why in unseen)
        print(f"fleet {known.name} is down: {len(known.urls)} replicas have ended{more}")
    return 0


def _still_ending(known: FleetFile) -> tuple[list[str], list[str]]:
    """Wait until a cluster has deleted the Pods; those still there, and why they cannot be looked for."""
    if known.backend != "kubernetes":
        return [], []
    from envweave_gym.providers.kubernetes.api_errors import told
    from envweave_gym.providers.kubernetes.cluster_access import cluster
    from envweave_gym.providers.kubernetes.leftover_pods import pods_of

    deadline = time.monotonic() + _PODS_END_WITHIN_S
    try:
        where = cluster(**known.place)
        with told("its Pods are being deleted, but cannot be looked for", where):
            while ending := pods_of(where, f"{known.pid}-{known.began}"):
                if time.monotonic() > deadline:
                    break
                time.sleep(_EVERY)
    except EnvweaveError as error:
        return [], [str(error)]
    return ending, []


# What a keeper that was killed leaves behind


def _say_cleaned(known: FleetFile, where: Any) -> None:
    removed = _removed(_clean(known))
    line = f"fleet {known.name} is gone, as process {known.pid} was killed; removed: {removed}"
    print(f"envweave: {line}" if where is sys.stderr else line, file=where)


def _removed(cleaned: dict[str, Any]) -> str:
    told = [", ".join(cleaned["removed"]), *cleaned["unseen"]]
    return "; ".join(filter(None, told)) or "nothing was left behind"


def _clean(known: FleetFile) -> dict[str, list[str]]:
    """Remove what is left of a fleet whose keeper is gone: what it was, and what could not be looked for."""
    from envweave_gym.cli.sweep import left_containers, left_pods

    removed: list[str] = []
    unseen: list[str] = []
    if known.backend.startswith("docker"):
        left_containers(removed, unseen)
    elif known.backend == "kubernetes":
        left_pods([known], removed, unseen)
    if known.remove():
        log_file(known.name).unlink(missing_ok=True)
    return {"removed": removed, "unseen": unseen}
