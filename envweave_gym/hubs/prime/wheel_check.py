"""Inspects a wheel before it is installed: its name, its files, its metadata; nothing of it runs."""

from __future__ import annotations

import configparser
import email.parser
import io
import re
import sys
import zipfile
import zlib
from dataclasses import dataclass
from lzma import LZMAError
from typing import Literal

from envweave_gym.core.faults import NotAvailable, shown
from envweave_gym.hubs.prime.hub_id import HubId, normalised

Generation = Literal["v0", "v1"]
MAX_FILES = 20_000
MAX_UNPACKED_BYTES = 1 << 30
_MAX_METADATA_BYTES = 4 << 20
_MAX_SOURCE_BYTES = 4 << 20
_UNREADABLE = (
    *(zipfile.BadZipFile, zlib.error, LZMAError, OSError, EOFError),
    *(ValueError, NotImplementedError, RuntimeError, KeyError),
)
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+!_-]{0,98}")
_REQUIREMENT = re.compile(
    r"(?P<name>[A-Za-z0-9][\w.-]*)\s*(?:\[(?P<extras>[^]]*)\])?\s*(?P<rest>.*)", re.DOTALL
)
_ONLY_EXTRA = re.compile(r"""\bextra\s*==\s*['"]""")
_PIN = re.compile(r"(?P<sign>===?|~=|!=|<=?|>=?)\s*(?P<version>[\w.*+!-]+)")
_FLOORS = ("==", "===", ">=", ">", "~=")
_RESERVED = {"verifiers", "pip", "setuptools", "sitecustomize", "usercustomize"}
"""Modules of the library, and modules that Python or installers import by themselves."""
_OURS = {"envweave_gym", "envweave_gym_server", "envweave_gym_pytest", "envweave_harness"}
_MAX_ENTRY_POINTS_BYTES = 1 << 20
_GROUP = re.compile(r"[\w.:-]+")
"""Names of sections of entry points that all installers read alike."""
_OF_COMMANDS = ("console_scripts", "gui_scripts")
_V1_BEGINS = (0, 2)
"""Lowest floor of the requirement ``verifiers`` that means the second generation, by the hub's own rule."""


@dataclass(frozen=True)
class CheckedWheel:
    """A wheel that may be installed."""

    version: str
    requires: tuple[str, ...]
    """Requirements without those of extras."""
    generation: Generation
    """Generation of the library that the wheel is written for."""
    files: tuple[str, ...] = ()
    scripts: tuple[str, ...] = ()
    """Names of the commands that an install makes."""


def check_wheel(
    data: bytes, filename: str, hub_id: HubId, version: str | None, hint: str | None
) -> CheckedWheel:
    """Inspect the bytes of a wheel; raise ``NotAvailable`` with the reason if it must not be installed.

    ``version`` is that which the hub names, and ``hint`` the generation that it names, if it does.
    """
    problem = f"the wheel {shown(filename)} of {hub_id.path}"
    _check_filename(filename, hub_id, problem)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as wheel:
            names = _checked_names(wheel, problem)
            dist_info = _dist_info(names, problem)
            _check_modules(names, dist_info, hub_id, problem)
            metadata = _read(wheel, f"{dist_info}/METADATA", _MAX_METADATA_BYTES, problem)
            found, requires = _checked_metadata(metadata, hub_id, version, problem)
            if not _same_release(filename.split("-")[1], found):
                raise NotAvailable(
                    f"{problem} is named like another version than {found}, which it says; not installed"
                )
            generation = _generation(requires, hint, _source(wheel, names, hub_id))
            scripts = _scripts(wheel, names, f"{dist_info}/entry_points.txt", problem)
            if wheel.testzip() is not None:
                raise NotAvailable(f"{problem} is damaged; not installed")
    except _UNREADABLE as error:
        raise NotAvailable(
            f"{problem} cannot be read: {error or type(error).__name__}; not installed"
        ) from None
    return CheckedWheel(found, requires, generation, tuple(names), scripts)


def _check_filename(filename: str, hub_id: HubId, problem: str) -> None:
    parts = filename.removesuffix(".whl").split("-")
    is_named = len(parts) in (5, 6) and normalised(parts[0]) == hub_id.distribution
    if not filename.endswith(".whl") or not is_named or not re.fullmatch(r"[\w.+!-]+", filename):
        raise NotAvailable(f"{problem} is not named like one of {hub_id.name!r}; not installed")


def _checked_names(wheel: zipfile.ZipFile, problem: str) -> list[str]:
    entries = wheel.infolist()
    if len(entries) > MAX_FILES or sum(one.file_size for one in entries) > MAX_UNPACKED_BYTES:
        limits = f"{MAX_FILES} files and {MAX_UNPACKED_BYTES >> 20} MB"
        raise NotAvailable(f"{problem} is larger than {limits} when unpacked; not installed")
    names = [one.filename for one in entries]
    for one, name in zip(entries, names, strict=True):
        parts = name.removesuffix("/").split("/")
        is_safe = name.isprintable() and not set("\\:") & set(name) and not {"", ".", ".."} & set(parts)
        if not is_safe or (one.external_attr >> 28) == 0xA:  # a symbolic link
            raise NotAvailable(
                f"{problem} has the unsafe path {shown(name)}; it must be a relative one of a plain file, without "
                "'..', '\\' and ':'; not installed"
            )
        if "__pycache__" in name.lower().split("/") or name.lower().endswith((".pyc", ".pyo")):
            raise NotAvailable(
                f"{problem} has {shown(name)}, which is compiled and may stand for any module; not installed"
            )
    if len({name.lower() for name in names}) < len(names):
        raise NotAvailable(f"{problem} has two files with the same path; not installed")
    return names


def _dist_info(names: list[str], problem: str) -> str:
    found = {name.split("/")[0] for name in names if re.fullmatch(r"[^/]+\.dist-info/METADATA", name)}
    if len(found) != 1:
        raise NotAvailable(
            f"{problem} has {len(found)} .dist-info folders with METADATA; exactly one is allowed; not installed"
        )
    return found.pop()


def _check_modules(names: list[str], dist_info: str, hub_id: HubId, problem: str) -> None:
    tops = {name.split("/")[0] for name in names}
    for top in tops:
        if top.endswith(".data"):
            raise NotAvailable(
                f"{problem} has {top}, which would be installed outside of site-packages; not installed"
            )
        if top.endswith(".dist-info") and top != dist_info:
            raise NotAvailable(f"{problem} has {top}, which belongs to another package; not installed")
        module = top.partition(".")[0]
        if module in sys.stdlib_module_names:
            raise NotAvailable(f"{problem} has {top}, which would hide a module of Python; not installed")
        if module.lower() in _RESERVED | _OURS:
            raise NotAvailable(f"{problem} has {top}, which would hide another package's; not installed")
    if any(name.endswith(".pth") and "/" not in name for name in names):
        raise NotAvailable(
            f"{problem} has a .pth file, which would run at every start of Python; not installed"
        )
    if not {f"{hub_id.module}.py", f"{hub_id.module}/__init__.py"} & set(names):
        raise NotAvailable(
            f"{problem} has no module {hub_id.module!r}, which the library would import; not installed"
        )


def _checked_metadata(
    metadata: bytes, hub_id: HubId, version: str | None, problem: str
) -> tuple[str, tuple[str, ...]]:
    fields = email.parser.BytesParser().parsebytes(metadata, headersonly=True)
    name, found = (str(fields.get(key) or "").strip() for key in ("Name", "Version"))
    if normalised(name) != hub_id.distribution:
        raise NotAvailable(f"{problem} says that it is {shown(name)}; not installed")
    if not _VERSION.fullmatch(found) or (version is not None and not _same_version(found, version)):
        raise NotAvailable(f"{problem} says that it is version {shown(found)}, the hub says {shown(version)}")
    requires = [" ".join(str(one).split()) for one in fields.get_all("Requires-Dist", [])]
    plain = tuple(one for one in requires if not _ONLY_EXTRA.search(one.partition(";")[2]))
    for one in plain:
        if _REQUIREMENT.fullmatch(one) is None or "@" in one.partition(";")[0] or one.startswith("-"):
            raise NotAvailable(
                f"{problem} requires {shown(one)}; only names and versions from the package index are taken"
            )
    return found, plain


def _same_version(one: str, other: str) -> bool:
    return one == other or _numbers(one) == _numbers(other) != ()


def _same_release(one: str, other: str) -> bool:
    """Return whether versions, of which one may be normalised, agree in the numbers before ``rc1``, ``+local`` etc."""
    releases = [re.match(r"v?(?:\d+!)?([\d.]*\d)?", version.lower()) for version in (one, other)]
    return one == other or len({_numbers(found[1] or "") for found in releases if found}) == 1


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a plain version without zeros at the end; an empty tuple for any other."""
    if not re.fullmatch(r"v?\d{1,9}(\.\d{1,9})*", version):
        return ()
    numbers = [int(part) for part in version.lstrip("v").split(".")]
    while len(numbers) > 1 and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def _read(wheel: zipfile.ZipFile, name: str, largest: int, problem: str) -> bytes:
    with wheel.open(name) as file:
        data = file.read(largest + 1)
    if len(data) > largest:
        raise NotAvailable(f"{problem} has a {name} of more than {largest >> 20} MB; not installed")
    return data


class _EntryPoints(configparser.ConfigParser):
    def optionxform(self, optionstr: str) -> str:
        """Return the name of a command as it is: it may have upper case."""
        return optionstr


def _scripts(wheel: zipfile.ZipFile, names: list[str], path: str, problem: str) -> tuple[str, ...]:
    if path not in names:
        return ()
    points = _EntryPoints(delimiters=("=",), interpolation=None, strict=False)
    text = _read(wheel, path, _MAX_ENTRY_POINTS_BYTES, problem).decode()
    try:
        points.read_string(text)
    except configparser.Error as error:
        raise NotAvailable(
            f"{problem} has wrong entry points: {str(error).splitlines()[0]}; not installed"
        ) from None
    # Installers strip lines and names of sections, which configparser does not.
    unclear = [kind for kind in points.sections() if not _GROUP.fullmatch(kind) or _is_disguised(kind)]
    unclear += [line for line in text.splitlines() if line.strip() and line[0].isspace()]
    if unclear:
        raise NotAvailable(
            f"{problem} has wrong entry points: {shown(unclear[0])} may be read as another section; not installed"
        )
    kinds = [kind for kind in _OF_COMMANDS if points.has_section(kind)]
    scripts = tuple(name for kind in kinds for name in points.options(kind))
    for script in scripts:
        if not re.fullmatch(r"[\w.+-]+", script) or script in (".", ".."):
            raise NotAvailable(f"{problem} has the command {shown(script)}, which is no name; not installed")
    return scripts


def _is_disguised(kind: str) -> bool:
    return kind not in _OF_COMMANDS and kind.lower() in _OF_COMMANDS


def _source(wheel: zipfile.ZipFile, names: list[str], hub_id: HubId) -> str:
    """Return the source of the top module, as far as it is searched for the names that tell the generation."""
    path = f"{hub_id.module}.py" if f"{hub_id.module}.py" in names else f"{hub_id.module}/__init__.py"
    with wheel.open(path) as file:
        return file.read(_MAX_SOURCE_BYTES).decode(errors="replace")


def _generation(requires: tuple[str, ...], hint: str | None, source: str) -> Generation:
    """Return the hub's hint, else what the requirement ``verifiers`` means, else what the module defines.

    A module with ``load_environment`` and without ``__all__`` cannot be loaded by the second generation.
    """
    hinted: dict[str | None, Generation] = {"VERIFIERS_V0": "v0", "VERIFIERS_V1": "v1"}
    if hint in hinted:
        return hinted[hint]
    has_loader = re.search(r"\bload_environment\b", source) is not None
    has_exports = re.search(r"^__all__\b", source, re.MULTILINE) is not None
    if has_loader != has_exports:
        return "v0" if has_loader else "v1"
    floors = [floor for one in requires if (floor := _verifiers_floor(one)) is not None]
    return "v0" if floors and max(floors) < _V1_BEGINS else "v1"


def _verifiers_floor(requirement: str) -> tuple[int, ...] | None:
    """Return the highest floor of a requirement ``verifiers``; ``(0,)`` for another pin, ``None`` without any."""
    found = _REQUIREMENT.fullmatch(requirement.partition(";")[0].strip())
    if found is None or normalised(found["name"]) != "verifiers" or not found["rest"].strip():
        return None
    pins = [(pin["sign"], pin["version"]) for pin in _PIN.finditer(found["rest"])]
    floors = [
        tuple(int(number) for number in re.findall(r"\d+", version)[:3])
        for sign, version in pins
        if sign in _FLOORS
    ]
    return max(floors) if floors else (0,)
