"""Diffs as models write them: brought into shape, and what they touch."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

LONGEST = 1 << 20
"""No diff is longer, in characters; those of Lite have some thousands at most."""

_HUNK = re.compile(r"@@ -\d+(?:,(\d{1,9}))? \+\d+(?:,(\d{1,9}))? @@")
_GIT = re.compile(r'diff --git ("(?:[^"\\]|\\.)*"|.*?) ("(?:[^"\\]|\\.)*"|[^ ]*|b/.*)')
_MODE = re.compile(r"(?:new file mode|new mode|deleted file mode|old mode|index .*\.\.\S*) (.*)")
_EXTENDED = re.compile(
    r"(?:index|old mode|new mode|new file mode|deleted file mode|similarity index|dissimilarity index"
    r"|rename from|rename to|copy from|copy to|GIT binary patch|Binary files|Subproject commit)\b"
)
_MOVED = re.compile(r"(rename|copy) (from|to) (.*)")
_COMPLETE = re.compile(r"new mode|similarity index 100%|deleted file mode|index 0+\.\.e69de29b?")
"""The lines that say all there is to say; of an empty file git writes the digest."""
_FENCES = ("```", "~~~")
_BINARY = ("GIT binary patch", "Binary files ")
_ESCAPED = re.compile(rb'\\([abtnvfr"\\]|[0-7]{3})')
_ESCAPES = {b"a": 7, b"b": 8, b"t": 9, b"n": 10, b"v": 11, b"f": 12, b"r": 13, b'"': 34, b"\\": 92}
_NOWHERE = "/dev/null"

Kind = Literal["change", "add", "delete", "rename", "copy"]


@dataclass
class Change:
    """What a diff does to one file."""

    kind: Kind = "change"
    old: str = ""
    """Its name before; empty where it is new."""
    new: str = ""
    """Its name after; empty where it goes."""
    modes: list[str] = field(default_factory=list[str])
    """Every mode that is named, as it is written: 100644, 120000 for a symbolic link, … Git reads more."""
    binary: bool = False
    hunks: int = 0
    names: list[str] = field(default_factory=list[str])
    """Every name that a line about it has, also where the lines contradict each other."""
    missing: int = 0
    """How many lines the text ends too early for the last hunk."""
    lasts: bool = False
    """Whether it is complete without a hunk: a mode, an exact rename, an empty file."""


@dataclass(frozen=True)
class Diff:
    """A diff, and what it touches."""

    text: str
    """It without the prose around it, with line ends as it means them, and with a last one."""
    changes: tuple[Change, ...]
    prose: str = ""
    """The lines between its parts, which git leaves out."""

    @property
    def paths(self) -> tuple[str, ...]:
        """Every name that its headers have, before or after."""
        return tuple(dict.fromkeys(path for one in self.changes for path in one.names if path))


def lines_of(text: str) -> list[str]:
    """The lines with their ends; only ``\\n`` ends one, as everywhere in diffs."""
    lines = [f"{line}\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def parsed(text: str) -> Diff:
    """The diff in ``text``, which may have prose before and after it; anything can be parsed.

    Where all lines end in CRLF, that is how the text came and not what it says: they end in LF then. Where
    only those of a file do, the file has such lines.
    """
    lines = lines_of(text if text.endswith("\n") else f"{text}\n")
    if all(line.endswith("\r\n") for line in lines):
        lines = [f"{line[:-2]}\n" for line in lines]
    reader = _Reader(lines)
    while reader.place < len(lines):
        reader.read()
    return Diff(reader.text(), tuple(reader.changes), "".join(reader.prose))


def cut_off(diff: Diff) -> str | None:
    """Why the end of a diff is missing, in a sentence; None where it ends as its headers say.

    The program ``patch`` takes a hunk that lacks its last lines. What is cut off in the middle of the very
    last line of a hunk is not found.
    """
    if not diff.changes:
        return None
    last = diff.changes[-1]
    name = last.new or last.old
    if last.missing:
        return f"the diff is cut off: its last hunk, of {name}, ends {last.missing} lines too early"
    if not last.hunks and not last.lasts and not last.binary:
        return f"the diff is cut off: it has no hunk for {name}"
    return None


def in_crlf(diff: Diff) -> str | None:
    """The same diff for files whose lines end in CRLF; None where it is of such files already."""
    if "\r\n" in diff.text:
        return None
    reader = _Reader(lines_of(diff.text))
    while reader.place < len(reader.lines):
        reader.read(b"\r\n")
    return reader.text()


class _Reader:
    """Reads a diff from its first line to its last."""

    def __init__(self, lines: list[str]) -> None:
        self.lines, self.place = lines, 0
        self.kept: list[str] = []
        self.prose: list[str] = []
        self.changes: list[Change] = []
        self._has_names = False
        self._end = 0

    def text(self) -> str:
        """The diff without prose before and after it; text in between stays, as git ignores it."""
        while self._end < len(self.kept) and self.kept[self._end][0] in "+-\\":
            self._end += 1
        return "".join(self.kept[: self._end])

    def read(self, ends: bytes = b"") -> None:
        """Read what comes next: a header, a hunk, or a line that says nothing."""
        line = self.lines[self.place].rstrip("\r\n")
        if line.startswith("diff --git "):
            self._begin(line)
        elif line.startswith("--- ") and self._next().startswith("+++ "):
            self._name(line, self._next())
        elif self.changes and (hunk := _HUNK.match(line)):
            self._hunk(hunk, ends.decode())
        elif self.changes and _EXTENDED.match(line):
            self._extend(line)
        elif self.changes and line.startswith(("--- ", "+++ ")):  # alone, which git takes in a header
            self.changes[-1].names.append(_name_in(line[4:]))
            self._keep(line)
        else:  # prose, or what is left of a hunk that is longer than it says
            if self.changes:
                self.kept.append(self.lines[self.place])
                self.prose.append(self.lines[self.place])
            self.place += 1
            return
        self._end = len(self.kept)

    def _next(self) -> str:
        following = self.lines[self.place + 1 : self.place + 2]
        return following[0].rstrip("\r\n") if following else ""

    def _begin(self, line: str) -> None:
        change, self._has_names = Change(), False
        if named := _git_names(line):
            change.old, change.new = named
            change.names += named
        self.changes.append(change)
        self._keep(line)

    def _name(self, before: str, after: str) -> None:
        if not self.changes or self._has_names or self.changes[-1].hunks:
            self.changes.append(Change())
        change, self._has_names = self.changes[-1], True
        old, new = _name_in(before[4:]), _name_in(after[4:])
        if change.kind in ("change", "add", "delete"):
            change.kind = "add" if not old else "delete" if not new else "change"
        change.old, change.new = old, new
        change.names += (old, new)
        change.lasts = False
        self._keep(before, after)

    def _extend(self, line: str) -> None:
        change = self.changes[-1]
        if mode := _MODE.match(line):
            change.modes.append(mode[1].rstrip())
        if moved := _MOVED.match(line):
            change.kind = "rename" if moved[1] == "rename" else "copy"
            name = unquoted(moved[3])
            setattr(change, "old" if moved[2] == "from" else "new", name)
            change.names.append(name)
        elif line.startswith("new file mode "):
            change.kind, change.old = "add", ""
        elif line.startswith("deleted file mode "):
            change.kind, change.new = "delete", ""
        change.binary |= line.startswith(_BINARY)
        change.lasts |= _COMPLETE.match(line) is not None
        self._keep(line)

    def _hunk(self, hunk: re.Match[str], ends: str) -> None:
        """A hunk has as many lines of both sides as it says; what ends it early is left to git."""
        old, new = (int(count) if count is not None else 1 for count in hunk.groups())
        self.changes[-1].hunks += 1
        self._keep(hunk.string)
        while self.place < len(self.lines) and (old > 0 or new > 0):
            line = self.lines[self.place]
            sign = line[:1] if line.strip("\r\n") else " "  # models leave out the space of an empty line
            if sign not in (" ", "+", "-", "\\"):
                self.changes[-1].missing = max(old, new, 0) if line.startswith(_FENCES) else 0
                return
            old, new = old - (sign in " -"), new - (sign in " +")
            self._content(line, ends)
        self.changes[-1].missing = max(old, new, 0)
        if self.place < len(self.lines) and self.lines[self.place].startswith("\\"):
            self._content(self.lines[self.place], "")

    def _content(self, line: str, ends: str) -> None:
        converted = bool(ends) and not line.startswith("\\")
        self.kept.append(f"{line[:-1]}{ends}" if converted else line)
        self.place += 1

    def _keep(self, *lines: str) -> None:
        self.kept += [f"{line}\n" for line in lines]
        self.place += len(lines)


# Names


def _git_names(line: str) -> tuple[str, str] | None:
    """The names in ``diff --git a/x b/x``, which are the same wherever no other line has them."""
    rest = line.removeprefix("diff --git ")
    if rest.startswith('"') or rest.endswith('"'):
        found = _GIT.fullmatch(line)
        return (_stripped(unquoted(found[1])), _stripped(unquoted(found[2]))) if found else None
    half = len(rest) // 2
    if len(rest) % 2 and rest[half] == " " and _stripped(rest[:half]) == _stripped(rest[half + 1 :]):
        return _stripped(rest[:half]), _stripped(rest[half + 1 :])
    old, _, new = rest.partition(" b/")
    return _stripped(old), new or _stripped(old)


def _name_in(text: str) -> str:
    """The name in what follows ``---`` or ``+++``; empty for ``/dev/null``."""
    name = unquoted(text.rstrip()) if text.startswith('"') else text.partition("\t")[0].rstrip()
    return "" if name == _NOWHERE else _stripped(name)


def _stripped(name: str) -> str:
    """The name without its first folder, which ``-p1`` leaves out, if it has one; an absolute one stays."""
    return name if name.startswith("/") else name.partition("/")[2] or name


def unquoted(text: str) -> str:
    """The name that git has written in quotes, with its escapes; one without quotes stays."""
    text = text.strip()
    if len(text) < 2 or not (text.startswith('"') and text.endswith('"')):
        return text
    raw = text[1:-1].encode(errors="backslashreplace")
    return _ESCAPED.sub(_unescaped, raw).decode(errors="backslashreplace")


def _unescaped(found: re.Match[bytes]) -> bytes:
    code = _ESCAPES[found[1]] if found[1] in _ESCAPES else int(found[1], 8) & 0xFF
    return bytes([code])
