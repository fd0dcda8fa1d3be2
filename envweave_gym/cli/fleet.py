"""``envweave fleet``: starts several servers, restarts those that die, and ends them together.

The process that does this, the *keeper*, runs in the foreground or, with ``--detach``, in the background.
"""

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
    taken,
)
from envweave_gym.cli.tables import print_json, screen_width, table
from envweave_gym.core.faults import EnvweaveError, InvalidArgument, NotAvailable, shown
from envweave_gym.os_support.token_file import read_token, token_in
from envweave_gym.providers.base import provider_of

_FLEET_ENDS_WITHIN_S = 90.0
_PODS_END_WITHIN_S = 30.0
"""Seconds that ``down`` waits for Pods to be deleted.

Measured on a real cluster: a Pod is gone 3 to 15 s after its deletion, later if its node pulls images.
"""
_POLL_S = 0.5
_END_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_IS_ENDING = (
    b"envweave: the fleet is ending; once more ends this command at once, and leaves what is still there to "
    b"'envweave doctor --sweep'\n"
)
_OWN_FLAGS = {
    "backend": "--backend NAME",
    "replicas": "--replicas N",
    "ids": "the IDs without a name",
    "token": "--token-file PATH",
}
"""Options of ``Fleet`` that have a flag of their own, by option; ``--option`` refuses them."""
_PROGRAM = "import sys; from envweave_gym.cli import main; sys.exit(main())"


def add_options(
    parser: argparse.ArgumentParser, add: Callable[..., Any], option: Callable[[str], Any]
) -> None:
    """Add the subcommands to ``parser``.

    ``add`` creates a subcommand, and ``option`` parses ``NAME=VALUE``.
    """
    commands = parser.add_subparsers(metavar="up|status|down", required=True)
    up = add(commands, "up", "Start a fleet, and keep it up until Ctrl-C, SIGTERM or 'envweave fleet down'.")
    up.set_defaults(action=_up)
    up.add_argument("ids", metavar="ID", nargs="*", help="what to serve; without any, all that is there")
    up.add_argument("--backend", default="docker", help="docker (by default), subprocess, kubernetes or ray")
    up.add_argument("--replicas", metavar="N", type=int, default=1, help="number of servers (1)")
    up.add_argument("--image", help="the image they are in; by default that of the IDs")
    up.add_argument("--memory", metavar="SIZE", help="memory limit of each, like 512m")
    up.add_argument("--cpus", metavar="N", type=float, help="CPU limit of each, in cores")
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
    """Run the chosen subcommand."""
    return args.action(args)


# up


def _up(args: argparse.Namespace) -> int:
    old = find(args.name)
    if old is not None:
        if old.has_keeper():
            raise taken(args.name)
        _print_cleaned(old, sys.stderr)
    return _detached(args) if args.detach else _run_keeper(args)


def _run_keeper(args: argparse.Namespace) -> int:
    """Start the fleet in this process and supervise it until it is interrupted."""
    from envweave_gym.providers.replica_fleet import Fleet

    token_file = Path(args.token_file or own_token_file(args.name)).absolute()
    provider = provider_of(args.backend)
    keys = provider.place_options if provider else ()
    cluster = {key: str(value) for key, value in args.option if key in keys and value is not None}
    known = FleetFile(name=args.name, backend=args.backend, token_file=str(token_file), cluster=cluster)
    output = _output(args)
    with _interruptible():
        known.claim()
        try:
            token = token_in(token_file)
            with Fleet(args.backend, args.replicas, ids=args.ids, token=token, **_options(args)) as fleet:
                _supervise(known, fleet, lambda: _announce(known, args, output))
        finally:
            known.remove()
    return 0


@contextmanager
def _interruptible() -> Generator[None]:
    """Turn the first of SIGTERM, SIGINT and SIGHUP into ``KeyboardInterrupt``, which takes the fleet down.

    The second signal prints that the fleet is ending; the third one ends this process at once.
    """

    def interrupt(*_: Any) -> None:
        for one in caught:
            signal.signal(one, remind)
        raise KeyboardInterrupt

    def remind(*_: Any) -> None:
        for one in caught:
            signal.signal(one, signal.SIG_DFL)
        os.write(2, _IS_ENDING)  # print may be in the middle of a line

    caught = [one for one in _END_SIGNALS if signal.getsignal(one) != signal.SIG_IGN]
    before = {one: signal.signal(one, interrupt) for one in caught}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the keyword arguments of ``Fleet`` that the flags stand for."""
    from envweave_gym.registry.catalog import cards

    options: dict[str, Any] = dict(args.option)
    for name in options.keys() & _OWN_FLAGS.keys():
        raise InvalidArgument(f"--option {name}=… is no option of a backend; give {_OWN_FLAGS[name]}")
    images = {card.image for card in map(cards().get, args.ids) if card is not None}
    provider = provider_of(args.backend)
    has_images = provider is not None and provider.uses_images and "image" not in options
    image = args.image or (images.pop() if len(images) == 1 and has_images else None)
    given = {"image": image, "memory": args.memory, "cpus": args.cpus}
    return options | {name: value for name, value in given.items() if value is not None}


def _announcement(known: FleetFile, args: argparse.Namespace) -> str:
    """Return what a started fleet prints, as text or JSON: URLs, token file and a line of Python that uses them."""
    env_id = args.ids[0] if args.ids else "envweave/Counter-v0"
    use = f"gymnasium.make({env_id!r}, backend={known.urls}, token={f'file:{known.token_file}'!r})"
    if args.json:
        document = {"name": known.name, "urls": known.urls, "token_file": known.token_file, "python": use}
        return json.dumps(document, indent=2)
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
    """Return the file that the URLs of the started fleet are printed to: stdout, or a duplicate of it.

    In the background, stdout is a pipe to the command that started this process, which reads it to its end. Servers
    do not inherit the duplicate, so closing it ends the pipe. Their stdout is the log: descriptor 1 becomes stderr.
    """
    if not args.background:
        return sys.stdout
    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # all that servers print goes to the log
    return pipe


def _announce(known: FleetFile, args: argparse.Namespace, output: Any) -> None:
    print(_announcement(known, args), file=output, flush=True)
    if args.background:
        output.close()


def _supervise(known: FleetFile, fleet: Any, announce: Callable[[], None]) -> None:
    """Call ``announce``, which prints the URLs; until interrupted, write restarts and problems to the state file."""
    try:
        known.backend, known.urls = fleet.backend, [str(url) for url in fleet.urls]
        _save_changes(known, fleet)
        announce()
        while True:
            time.sleep(_POLL_S)
            _save_changes(known, fleet)
    except KeyboardInterrupt:
        return


def _save_changes(known: FleetFile, fleet: Any) -> None:
    found = fleet.restarts, dict(fleet.problems)
    if found != (known.restarts, known.problems):
        known.restarts, known.problems = found
        known.save()


def _detached(args: argparse.Namespace) -> int:
    """Start a keeper in the background, and wait until it prints the URLs of the fleet or fails."""
    command = [sys.executable, "-c", _PROGRAM, "fleet", "up", "--background", *_words(args)]
    log = log_file(args.name)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as errors:
        keeper = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,  # Ctrl-C in this terminal must not reach the keeper
        )
    assert keeper.stdout is not None
    with keeper.stdout:
        try:
            announcement = keeper.stdout.read().decode()
        except KeyboardInterrupt:
            keeper.terminate()
            try:
                with suppress(subprocess.TimeoutExpired):
                    keeper.wait(_FLEET_ENDS_WITHIN_S)
            finally:
                log.unlink(missing_ok=True)
            raise
    if announcement:
        keeper.returncode = 0  # it goes on without this process
        print(announcement, end="")
        return 0
    code = keeper.wait()
    print(log.read_text(errors="replace").strip() or f"envweave: exit code {code}", file=sys.stderr)
    log.unlink(missing_ok=True)
    return code if code > 0 else 1


def _words(args: argparse.Namespace) -> list[str]:
    """Return the parsed options as command-line arguments, for the keeper in the background."""
    # As JSON values keep their types.
    words = [f"--option={name}={json.dumps(value)}" for name, value in args.option]
    for name in ("backend", "replicas", "image", "memory", "cpus", "token_file", "name"):
        if (value := getattr(args, name)) is not None:
            words.append(f"--{name.replace('_', '-')}={value}")
    words += [f"--{name}" for name in ("json", "debug") if getattr(args, name)]
    return [*words, "--", *args.ids]


# status


def _status(args: argparse.Namespace) -> int:
    fleets, wrong = find_all() if args.name is None else ([_named(args.name)], [])
    reports = [_report(known) for known in fleets]
    for one in wrong:
        print(f"envweave: {one}", file=sys.stderr)
    if args.json:
        print_json({"fleets": reports, "unreadable": wrong})
    elif reports:
        rows = [row for one in reports for row in _rows(one)]
        print(table([("FLEET", "STATE", "SESSIONS", "RESTARTS", "URL"), *rows], screen_width()))
    elif not wrong:
        print("no fleet is up; 'envweave fleet up' starts one")
    return 0 if not wrong and all(one["state"] == "up" for one in reports) else 1


def _named(name: str) -> FleetFile:
    known = find(name)
    if known is None:
        raise InvalidArgument(
            f"there is no fleet {shown(name)}; 'envweave fleet status' lists those there are"
        )
    return known


def _report(known: FleetFile) -> dict[str, Any]:
    """Return the state of a fleet and of its replicas; remove the leftovers of a fleet whose keeper died."""
    from envweave_gym.providers.replica_fleet import statuses

    report: dict[str, Any] = {"name": known.name, "backend": known.backend, "pid": known.pid}
    report |= {"token_file": known.token_file, "replicas": [], "removed": [], "unseen": []}
    if not known.has_keeper():
        return report | {"state": "gone"} | _clean(known)
    if not known.urls:
        return report | {"state": "starting"}
    found = statuses(known.urls, _token_of(known))
    for one, restarts in zip(found, known.restarts, strict=True):
        problem = known.problems.get(one.url, "")
        state = "unhealthy" if problem else one.state
        report["replicas"].append(
            {
                "url": one.url,
                "state": state,
                "sessions": one.sessions,
                "restarts": restarts,
                "problem": problem,
            }
        )
    well = all(one["state"] == "healthy" for one in report["replicas"])
    return report | {"state": "up" if well else "unwell"}


def _token_of(known: FleetFile) -> str | None:
    """Return the fleet's token; if it cannot be read, print a warning and return ``None``.

    Without the token the servers do not report their numbers of sessions.
    """
    try:
        return read_token(Path(known.token_file))
    except InvalidArgument as error:
        print(f"envweave: warning: fleet {known.name}: {error}", file=sys.stderr)
        return None


def _rows(report: dict[str, Any]) -> list[tuple[str, ...]]:
    if report["state"] == "gone":
        killed = f"process {report['pid']} was killed; removed: {_removed(report)}"
        return [(report["name"], "gone", "", "", killed)]
    if report["state"] == "starting":
        return [(report["name"], "starting", "", "", "")]
    return [
        (
            report["name"],
            one["state"],
            "?" if one["sessions"] is None else str(one["sessions"]),
            str(one["restarts"]),
            f"{one['url']} {one['problem']}".strip(),
        )
        for one in report["replicas"]
    ]


# down


def _down(args: argparse.Namespace) -> int:
    known = _named(args.name)
    if not known.has_keeper():
        if not args.json:
            _print_cleaned(known, sys.stdout)
        else:
            print_json({"name": known.name, **_clean(known)})
        return 0
    os.kill(known.pid, signal.SIGTERM)
    deadline = time.monotonic() + _FLEET_ENDS_WITHIN_S
    while known.is_current() and known.has_keeper():
        if time.monotonic() > deadline:
            raise NotAvailable(
                f"fleet {known.name} has not ended within {_FLEET_ENDS_WITHIN_S:g} s; see "
                f"'envweave fleet status', or kill process {known.pid} and run 'envweave doctor --sweep'"
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
    """Wait until the fleet's Pods are deleted; return those that remain, and errors of the cluster."""
    provider, deadline = provider_of(known.backend), time.monotonic() + _PODS_END_WITHIN_S
    try:
        while ending := provider.ending(f"{known.pid}-{known.began}", known.cluster) if provider else []:
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL_S)
    except EnvweaveError as error:
        return [], [str(error)]
    return ending, []


# Leftovers of a keeper that was killed


def _print_cleaned(known: FleetFile, where: Any) -> None:
    removed = _removed(_clean(known))
    line = f"fleet {known.name} is gone, as process {known.pid} was killed; removed: {removed}"
    print(f"envweave: {line}" if where is sys.stderr else line, file=where)


def _removed(cleaned: dict[str, Any]) -> str:
    parts = [", ".join(cleaned["removed"]), *cleaned["unseen"]]
    return "; ".join(filter(None, parts)) or "nothing was left behind"


def _clean(known: FleetFile) -> dict[str, list[str]]:
    """Remove the leftovers of a fleet whose keeper is gone; return their names, and the errors."""
    from envweave_gym.cli.doctor.remove_leftovers import sweep_of

    leftovers = sweep_of(known.backend, [known])
    removed = [name for names in leftovers.removed.values() for name in names]
    if known.remove():
        log_file(known.name).unlink(missing_ok=True)
    return {"removed": removed, "unseen": leftovers.failed}
