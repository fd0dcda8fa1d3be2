"""Parses unified diffs as models write them: finds the diff in a reply, cleans it, and lists its changes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

MAX_CHARS = 1 << 20
"""Longer diffs are refused; those of Lite have some thousands of characters at most."""

_HUNK = re.compile(r"@@ -\d+(?:,(\d{1,9}))? \+\d+(?:,(\d{1,9}))? @@")
_GIT = re.compile(r'diff --git ("(?:[^"\\]|\\.)*"|.*?) ("(?:[^"\\]|\\.)*"|[^ ]*|b/.*)')
_MODE = re.compile(r"(?:new file mode|new mode|deleted file mode|old mode|index .*\.\.\S*) (.*)")
_EXTENDED = re.compile(
    r"(?:index|old mode|new mode|new file mode|deleted file mode|similarity index|dissimilarity index"
    r"|rename from|rename to|copy from|copy to|GIT binary patch|Binary files|Subproject commit)\b"
)
_MOVED = re.compile(r"(rename|copy) (from|to) (.*)")
_COMPLETE = re.compile(r"new mode|similarity index 100%|deleted file mode|index 0+\.\.e69de29b?")
"""Header lines of changes that need no hunk; ``e69de29b`` is git's hash of an empty file."""
_FENCE = re.compile(r"([ \t]*)(`{3,}|~{3,})[ \t]*([\w+-]*)[ \t]*")
_MARKED = frozenset({"diff", "patch", "udiff"})
_BEGIN = re.compile(r'^(?:diff --git |--- (?:"?a/|/dev/null)[^\n]*\n\+\+\+ )', re.MULTILINE)

_FENCES = ("```", "~~~")
_BINARY = ("GIT binary patch", "Binary files ")
_ESCAPED = re.compile(rb'\\([abtnvfr"\\]|[0-7]{3})')
_ESCAPES = {b"a": 7, b"b": 8, b"t": 9, b"n": 10, b"v": 11, b"f": 12, b"r": 13, b'"': 34, b"\\": 92}
_NOWHERE = "/dev/null"

Kind = Literal["change", "add", "delete", "rename", "copy"]


@dataclass
class Change:
    """The change of one file in a diff, as its header lines describe it."""

    kind: Kind = "change"
    old: str = ""
    """The path before; empty for a new file."""
    new: str = ""
    """The path after; empty for a deleted file."""
    modes: list[str] = field(default_factory=list[str])
    """All file modes in the header, as text: 100644, 120000 for a symbolic link, …"""
    binary: bool = False
    hunks: int = 0
    names: list[str] = field(default_factory=list[str])
    """All paths in the header lines, which may contradict each other."""
    missing: int = 0
    """Number of lines that the last hunk has fewer than its header says."""
    complete: bool = False
    """Whether the change needs no hunk: a new mode, an exact rename, an empty file."""


@dataclass(frozen=True)
class Diff:
    """A parsed unified diff: its cleaned text and the change of each file."""

    text: str
    """The diff without the prose around it, with normalised line ends, ending in a newline."""
    changes: tuple[Change, ...]
    prose: str = ""
    """The lines between the changes that are no part of any, which git ignores."""

    @property
    def paths(self) -> tuple[str, ...]:
        """All paths in the headers, old and new ones, without duplicates."""
        return tuple(dict.fromkeys(path for one in self.changes for path in one.names if path))


def lines_of(text: str) -> list[str]:
    """Split into lines with their ends. Unlike ``str.splitlines``, only ``\\n`` ends a line, as in diffs."""
    lines = [f"{line}\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def parse_diff(text: str) -> Diff:
    """Parse a unified diff with or without prose around it; text without a diff gives no changes.

    If all lines end in CRLF, they are converted to LF, as something must have converted the whole text before.
    If only some do, they stay, as the changed file itself must have CRLF lines.
    """
    lines = lines_of(text if text.endswith("\n") else f"{text}\n")
    if all(line.endswith("\r\n") for line in lines):
        lines = [f"{line[:-2]}\n" for line in lines]
    reader = _Reader(lines)
    while reader.index < len(lines):
        reader.read()
    return Diff(reader.text(), tuple(reader.changes), "".join(reader.prose))


def missing_end(diff: Diff) -> str | None:
    """Return a sentence if the end of a diff is missing, as in a reply cut at a token limit; else ``None``.

    The program ``patch`` would apply a hunk that lacks its last lines. A cut in the middle of the last line of a hunk
    cannot be detected.
    """
    if not diff.changes:
        return None
    last = diff.changes[-1]
    name = last.new or last.old
    if last.missing:
        return f"the diff is cut off: its last hunk, of {name}, ends {last.missing} lines too early"
    if not last.hunks and not last.complete and not last.binary:
        return f"the diff is cut off: it has no hunk for {name}"
    return None


def in_crlf(diff: Diff) -> str | None:
    """Return the diff with CRLF at the end of content lines, for CRLF files; ``None`` if it has CRLF already."""
    if "\r\n" in diff.text:
        return None
    reader = _Reader(lines_of(diff.text))
    while reader.index < len(reader.lines):
        reader.read("\r\n")
    return reader.text()


class _Reader:
    """A line-by-line parser of diffs; :attr:`index` is the index of the next line to read."""

    def __init__(self, lines: list[str]) -> None:
        self.lines, self.index = lines, 0
        self.kept: list[str] = []
        self.prose: list[str] = []
        self.changes: list[Change] = []
        self._has_names = False
        self._end = 0

    def text(self) -> str:
        """Return the diff without the prose before and after it; prose in between stays, as git ignores it."""
        while self._end < len(self.kept) and self.kept[self._end][0] in "+-\\":
            self._end += 1
        return "".join(self.kept[: self._end])

    def read(self, line_end: str = "") -> None:
        """Parse the header line, hunk or line of prose at :attr:`index`, store it, and advance past it.

        ``line_end`` replaces the ``\\n`` of the hunk's content lines: ``\\r\\n`` makes a diff for a CRLF file.
        """
        line = self.lines[self.index].rstrip("\r\n")
        if line.startswith("diff --git "):
            self._begin(line)
        elif line.startswith("--- ") and self._next().startswith("+++ "):
            self._name(line, self._next())
        elif self.changes and (hunk := _HUNK.match(line)):
            self._hunk(hunk, line_end)
        elif self.changes and _EXTENDED.match(line):
            self._extend(line)
        elif self.changes and line.startswith(("--- ", "+++ ")):  # one without the other: git accepts it
            self.changes[-1].names.append(_name_in(line[4:]))
            self._keep(line)
        else:  # prose, or surplus lines of a hunk that is longer than its header says
            if self.changes:
                self.kept.append(self.lines[self.index])
                self.prose.append(self.lines[self.index])
            self.index += 1
            return
        self._end = len(self.kept)

    def _next(self) -> str:
        following = self.lines[self.index + 1 : self.index + 2]
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
        change.complete = False
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
        change.complete |= _COMPLETE.match(line) is not None
        self._keep(line)

    def _hunk(self, hunk: re.Match[str], line_end: str) -> None:
        """Read as many lines of both sides as the header says; a line that fits neither ends the hunk early."""
        # Content is counted, not matched: a removed line "-- x" looks like a header "--- x" otherwise.
        old, new = (int(count) if count is not None else 1 for count in hunk.groups())
        self.changes[-1].hunks += 1
        self._keep(hunk.string)
        while self.index < len(self.lines) and (old > 0 or new > 0):
            line = self.lines[self.index]
            sign = line[:1] if line.strip("\r\n") else " "  # models omit the space of an empty context line
            if sign not in (" ", "+", "-", "\\"):
                self.changes[-1].missing = max(old, new, 0) if line.startswith(_FENCES) else 0
                return
            old, new = old - (sign in " -"), new - (sign in " +")
            self._content(line, line_end)
        self.changes[-1].missing = max(old, new, 0)
        if self.index < len(self.lines) and self.lines[self.index].startswith("\\"):
            self._content(self.lines[self.index], "")

    def _content(self, line: str, line_end: str) -> None:
        converted = bool(line_end) and not line.startswith("\\")  # not "\ No newline at end of file"
        self.kept.append(f"{line[:-1]}{line_end}" if converted else line)
        self.index += 1

    def _keep(self, *lines: str) -> None:
        self.kept += [f"{line}\n" for line in lines]
        self.index += len(lines)


# Paths in headers


def _git_names(line: str) -> tuple[str, str] | None:
    """Return the two paths of ``diff --git a/x b/x``; paths with spaces are clear only if both are the same."""
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
    """Return the path in the text after ``---`` or ``+++``; empty for ``/dev/null``."""
    name = unquoted(text.rstrip()) if text.startswith('"') else text.partition("\t")[0].rstrip()
    return "" if name == _NOWHERE else _stripped(name)


def _stripped(name: str) -> str:
    """Remove the first folder of a path, as ``patch -p1`` does; leave an absolute path as it is."""
    return name if name.startswith("/") else name.partition("/")[2] or name


def unquoted(text: str) -> str:
    """Decode a path that git has quoted and escaped; return a path without quotes as it is."""
    text = text.strip()
    if len(text) < 2 or not (text.startswith('"') and text.endswith('"')):
        return text
    raw = text[1:-1].encode(errors="backslashreplace")
    return _ESCAPED.sub(_unescaped, raw).decode(errors="backslashreplace")


def _unescaped(found: re.Match[bytes]) -> bytes:
    code = _ESCAPES[found[1]] if found[1] in _ESCAPES else int(found[1], 8) & 0xFF
    return bytes([code])


# Replies of models


def diff_in(reply: str) -> str:
    """Return the text of the diff in a model's reply; empty if there is none.

    Fenced blocks marked ``diff`` or ``patch`` are joined. If two of them change the same file, the earlier
    ones are drafts, and only the last block counts. Without such blocks the diff begins at the first
    ``diff --git`` or ``--- a/``.
    """
    blocks = list(_blocks(reply))
    if blocks:
        paths = [set(parse_diff(block).paths) for block in blocks]
        are_disjoint = sum(map(len, paths)) == len(set[str]().union(*paths))
        return "".join(blocks) if are_disjoint else blocks[-1]
    begin = _BEGIN.search(reply)
    return "" if begin is None else _until_fence(reply[begin.start() :])


def _blocks(reply: str) -> Iterator[str]:
    """Yield the content of Markdown blocks marked ``diff``, ``patch`` or ``udiff``.

    The last closing fence may be missing, as in a reply that was cut off.
    """
    inside: list[str] | None = None
    closing = ""
    for line in lines_of(reply):
        bare = line.rstrip()
        if inside is None:
            fence = _FENCE.fullmatch(bare)
            if fence and fence[3].lower() in _MARKED:
                inside, closing = [], fence[1] + fence[2]
        elif bare == closing:
            yield _ended("".join(inside))
            inside = None
        else:
            inside.append(line)
    if inside:
        yield _ended("".join(inside))


def _until_fence(text: str) -> str:
    kept: list[str] = []
    for line in lines_of(text):
        if line.startswith(("```", "~~~")):
            break
        kept.append(line)
    return "".join(kept)


def _ended(block: str) -> str:
    return block if not block or block.endswith("\n") else f"{block}\n"
