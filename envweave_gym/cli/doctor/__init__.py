"""``envweave doctor``: checks what works on this machine, and names the next step for what does not.

It reads the metadata of installed packages, and imports none of them except plug-ins.

Exit code 1 means that something must be repaired: a part of the base does not work, a plug-in raised, or an
extra is installed with a version that does not fit. An extra that is missing, in whole or in part, is no
failure, as a package that an extra needs may be installed for other reasons.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import re
import shutil
import sys
import warnings
from collections.abc import Iterator
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, requires, version
from typing import NamedTuple

from envweave_gym.cli.doctor.check import Check, Status
from envweave_gym.cli.doctor.container_engine import engine_checks
from envweave_gym.cli.doctor.sandbox_and_data import provisions
from envweave_gym.cli.tables import print_json, screen_width, table
from envweave_gym.core.faults import PACKAGE, NotAvailable
from envweave_gym.registry.catalog import GROUP, register_all

_OLDEST_PYTHON = (3, 11)
_SUM_OF_EXTRAS = "all"
_CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def run(args: argparse.Namespace) -> int:
    """Print the report; return 1 if something is broken, 0 if at most optional things are missing."""
    if args.sweep:
        from envweave_gym.cli.doctor.remove_leftovers import sweep_all

        return sweep_all(as_json=args.json)
    checks = list(_checks())
    works = not any(check.fails() for check in checks)
    if args.json:
        print_json({"ok": works, "checks": checks})
    else:
        rows = [(check.status, _title(check), _explained(check)) for check in checks]
        print(table(rows, screen_width()))
    return 0 if works else 1


def _checks() -> Iterator[Check]:
    yield _python()
    yield from _packages()
    yield from _plug_ins()
    yield from engine_checks()
    yield from provisions()
    yield _chromium()
    yield _resources()
    yield _start_methods()


def _title(check: Check) -> str:
    return f"{check.part} {check.name}" if check.part in ("extra", "plug-in") else check.name


def _explained(check: Check) -> str:
    return f"{check.detail}: {check.next_step}" if check.next_step else check.detail


def _python() -> Check:
    new_enough = sys.version_info >= _OLDEST_PYTHON
    wanted = ".".join(map(str, _OLDEST_PYTHON))
    return Check(
        part="base",
        name="python",
        status="ok" if new_enough else "broken",
        detail=f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        next_step="" if new_enough else f"install Python {wanted} or newer",
    )


class Requirement(NamedTuple):
    """A distribution that this package needs: its name, extras and versions, and the extra of ours that requires it."""

    name: str
    extras: tuple[str, ...]
    bounds: str
    extra: str | None


_REQUIREMENT = re.compile(r"([\w.-]+)\s*(?:\[([^]]*)\])?([^;]*)(?:;.*?extra\s*==\s*['\"]([\w.-]+))?")


def read_requirement(line: str) -> Requirement:
    """Parse a requirement such as ``"tinker<0.37,>=0.25; extra == 'tinker'"``."""
    match = _REQUIREMENT.match(line)
    assert match is not None, line
    name, extras, bounds, extra = match.groups()
    return Requirement(name, tuple(re.findall(r"[\w.-]+", extras or "")), bounds.strip(), extra)


def _packages() -> Iterator[Check]:
    """Check the package itself, each of its requirements, and each of its extras."""
    try:
        own, lines = version(PACKAGE), requires(PACKAGE) or []
    except PackageNotFoundError:
        todo = f"pip install {PACKAGE}, or pip install -e . in its source"
        yield Check(part="base", name=PACKAGE, status="missing", detail="not installed", next_step=todo)
        return
    yield Check(part="base", name=PACKAGE, status="ok", detail=own)
    needed = [read_requirement(line) for line in lines]
    for requirement in needed:
        if requirement.extra is None:
            yield _base(requirement)
    for extra in dict.fromkeys(requirement.extra for requirement in needed):
        if extra not in (None, _SUM_OF_EXTRAS):
            yield _extra(extra, _needs_of(extra, needed))


def _base(requirement: Requirement) -> Check:
    status, detail = _installed(requirement)
    todo = "" if status == "ok" else f"pip install '{requirement.name}{requirement.bounds}'"
    return Check(part="base", name=requirement.name, status=status, detail=detail, next_step=todo)


def _extra(extra: str, needs: list[Requirement]) -> Check:
    found = [(requirement.name, *_installed(requirement)) for requirement in needs]
    absent = [name for name, status, _ in found if status == "missing"]
    misfits = [f"{name} {detail}" for name, status, detail in found if status == "broken"]
    problems = misfits + ([f"lacks {', '.join(absent)}"] if absent else [])
    return Check(
        part="extra",
        name=extra,
        status="missing" if absent else "broken" if misfits else "ok",
        detail=", ".join(problems or [f"{name} {detail}" for name, _, detail in found]),
        next_step=f"pip install '{PACKAGE}[{extra}]'" if problems else "",
    )


def _needs_of(extra: str, needed: list[Requirement]) -> list[Requirement]:
    """Return those of the requirements ``needed`` that belong to an extra, or to the extras that it includes."""
    bring: list[Requirement] = []
    for requirement in needed:
        if requirement.extra == extra:
            if requirement.name == PACKAGE:
                bring += [inner for other in requirement.extras for inner in _needs_of(other, needed)]
            else:
                bring.append(requirement)
    return list(dict.fromkeys(bring))


def _installed(requirement: Requirement) -> tuple[Status, str]:
    try:
        found = version(requirement.name)
    except PackageNotFoundError:
        return "missing", "not installed"
    if within(found, requirement.bounds):
        return "ok", found
    return "broken", f"{found} does not fit {requirement.bounds}"


def within(found: str, bounds: str) -> bool:
    """Return whether the version ``found`` satisfies the ``>=`` and ``<`` bounds of a requirement."""
    have = _release(found)
    for sign, bound in re.findall(r"(>=|<)(?!=)\s*([\d.]+)", bounds):
        if (have >= _release(bound)) != (sign == ">="):
            return False
    return True


def _release(text: str) -> tuple[int, ...]:
    """Return the numbers of a version, without zeros at the end, so that 2.0 equals 2."""
    match = re.match(r"\d+(\.\d+)*", text)
    numbers = [int(part) for part in match[0].split(".")] if match else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _plug_ins() -> Iterator[Check]:
    """Check every package that registers IDs, schemes of names, or backends.

    Registering once more changes nothing, and warns of broken ones.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        register_all()
    complaints = [str(warning.message) for warning in caught]
    for plug_in in sorted(entry_points(group=GROUP)):
        named = f"plug-in {plug_in.name!r} ({plug_in.value})"
        yield _plug_in(plug_in, plug_in.name, next((text for text in complaints if named in text), ""))
    yield from _schemes_and_backends()


def _schemes_and_backends() -> Iterator[Check]:
    """Check every scheme of names and every backend of an installed package, by loading it."""
    from envweave_gym.providers.base import PROVIDERS, provider_of
    from envweave_gym.registry.schemes import SCHEMES, scheme_of

    for group, own, form, load in (
        ("envweave_gym.schemes", SCHEMES, "{}://", lambda name: scheme_of(f"{name}://")),
        ("envweave_gym.providers", PROVIDERS, "backend={!r}", provider_of),
    ):
        for plug_in in sorted(entry_points(group=group)):
            name, problem = form.format(plug_in.name), ""
            if plug_in.name in own:
                problem = f"{plug_in.value} has no effect, as {name} is this package's own"
            else:
                try:
                    load(plug_in.name)
                except NotAvailable as error:
                    problem = str(error)
            yield _plug_in(plug_in, name, problem)


def _plug_in(plug_in: EntryPoint, name: str, problem: str) -> Check:
    source = f"{plug_in.dist.name} {plug_in.dist.version}" if plug_in.dist else "unknown package"
    return Check(
        part="plug-in",
        name=name,
        status="broken" if problem else "ok",
        detail=" ".join(problem.split()) or f"{plug_in.value} of {source}",
        next_step=f"repair or uninstall {source}" if problem else "",
    )


def _chromium() -> Check:
    found = next(filter(None, map(shutil.which, _CHROMIUM)), None)
    return Check(
        part="machine",
        name="chromium",
        status="ok" if found else "missing",
        detail=found or "no chromium or chrome on the PATH",
        next_step="" if found else "install Chromium with the package manager of the system",
    )


def _resources() -> Check:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = "memory unknown"
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
        memory = f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB memory"
    return Check(part="machine", name="resources", status="ok", detail=f"{cores} cores, {memory}")


def _start_methods() -> Check:
    default, *others = multiprocessing.get_all_start_methods()
    detail = ", ".join([f"{default} (default)", *others])
    return Check(part="machine", name="start methods", status="ok", detail=detail)
