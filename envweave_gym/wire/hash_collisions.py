"""Limit of the hash collisions that the keys in a frame may cause, checked before the frame is decoded.

Python does not randomise the hashes of numbers and tuples, so a peer can choose keys that all collide. Building
a dict of n such keys takes n²/2 comparisons in one call, during which no other thread runs. Texts and bytes are
hashed with a secret of the process, and are not counted. A long key (a tuple, a large number) takes longer to
compare, and counts as several.

The decoder also requires that members of sets and pairs are plain lists, so that no array or other extension
holds keys that are not counted here.
"""

from __future__ import annotations

from envweave_gym.wire.values import ARRAY, BIG_INT, HASHED, PAIRS, SCALAR, SET, TEXT

MOST_COMPARISONS = 1 << 22
"""Limit of key comparisons, reached by a map of 2,048 keys; decoding that took 60 ms (measured)."""
SMALL_FRAME = 8 << 10
"""Size in bytes below which a frame needs no check, because it holds at most 2,048 keys and values."""
_SMALL_MAP_KEYS = 32
"""Number of keys up to which a map is not counted, because it costs no more than the rest of decoding."""
_SHORT_KEY_BYTES = 32
"""Size in bytes of a short key; a longer key counts as one more for each such size."""
_MAX_DEPTH = 1000

_LEAF, TEXT_HEAD, _LIST, _MAP, EXTENSION_HEAD = range(5)
OPAQUE = frozenset({ARRAY, SCALAR, TEXT, BIG_INT})
"""Extensions whose bytes are not msgpack."""
_MAY_COST = (b"\xde", b"\xdf", *(bytes([code]) for code in sorted(HASHED)))
"""First byte of a map of 16 keys or more, and the codes of extensions whose items become keys.

A frame without these bytes anywhere is not counted: counting takes longer than decoding a list of texts.
"""


_ITEMS, _KEYS_AND_ITEMS, _PAIRS, _PAIR_LIST, _PAIR, _SET, _SET_BODY, _MEMBERS = range(8)
"""Roles of a container; from the third on they are parts of an extension whose items become keys."""
_HOLDS = {_PAIRS: (_PAIR_LIST, None), _PAIR_LIST: (_PAIR, 2), _SET: (_SET_BODY, 2)}
"""For each role the role of its items, and their length if that is fixed; such items must be lists."""
_ROLES = {PAIRS: _PAIRS, SET: _SET}


def _heads() -> list[tuple[int, int, int]]:
    """Return, for each first byte of a value: its kind, the number of bytes of its size, and an offset of the size.

    The size is a number of bytes, of items or of pairs.
    """
    heads = [(_LEAF, 0, 0)] * 256
    heads[0x80:0xC0] = [
        *((_MAP, 0, size) for size in range(16)),
        *((_LIST, 0, size) for size in range(16)),
        *((TEXT_HEAD, 0, size) for size in range(32)),
    ]
    widths = {TEXT_HEAD: (0xC4, 0xC5, 0xC6), EXTENSION_HEAD: (0xC7, 0xC8, 0xC9)}
    for kind, firsts in widths.items():
        heads[firsts[0] : firsts[-1] + 1] = [(kind, width, 0) for width in (1, 2, 4)]
    heads[0xCA:0xD4] = [(_LEAF, 0, size) for size in (4, 8, 1, 2, 4, 8, 1, 2, 4, 8)]
    heads[0xD4:0xD9] = [(EXTENSION_HEAD, 0, size) for size in (1, 2, 4, 8, 16)]
    heads[0xD9:0xE0] = [
        *((TEXT_HEAD, width, 0) for width in (1, 2, 4)),
        *((_LIST, width, 0) for width in (2, 4)),
        *((_MAP, width, 0) for width in (2, 4)),
    ]
    return heads


HEADS = _heads()


def check_keys(frame: bytes) -> None:
    """Raise ``ValueError`` if the keys in a frame could collide so often that decoding blocks the interpreter.

    A frame that is not msgpack passes; the decoder, which reads the same bytes, refuses it.
    """
    if len(frame) < SMALL_FRAME or not any(byte in frame for byte in _MAY_COST):
        return
    if _comparisons(frame) > MOST_COMPARISONS:
        raise ValueError(
            "it has too many keys of maps or members of sets that are neither texts nor bytes; "
            "send at most 2,048 of those"
        )


class _Level:
    """State of reading one list, map or extension: its role, the items left, and the number of keys that count."""

    __slots__ = ("began", "end", "keys", "left", "owner", "role")

    def __init__(self, role: int, left: int, began: int, end: int, owner: _Level | None = None) -> None:
        """``left`` is the number of items still to read, and ``began`` the offset where the container begins.

        ``end`` is the offset where the innermost extension ends; ``owner`` is the list that contains this pair.
        """
        self.role, self.left, self.began, self.end = role, left, began, end
        self.keys = 0
        self.owner = owner

    @property
    def at_key(self) -> bool:
        """Whether the next item becomes a key of a dict or a member of a set."""
        role = self.role
        return (
            role == _MEMBERS
            or (role == _KEYS_AND_ITEMS and self.left % 2 == 0)
            or (role == _PAIR and self.left == 2)
        )

    def inner(self, kind: int, size: int, began: int) -> _Level:
        """Return the state for the next list or map, which has ``size`` items and begins at the offset ``began``.

        Raise ``ValueError`` if the format requires another kind or length there.
        """
        if self.role > _KEYS_AND_ITEMS and self.needs_list:
            role, length = _HOLDS.get(self.role, (_MEMBERS, None))
            if kind != _LIST or length not in (None, size):
                raise ValueError(_NO_LIST)
        elif kind == _MAP:
            return _Level(_KEYS_AND_ITEMS, 2 * size, began, self.end)
        else:
            role = _ITEMS
        return _Level(role, size, began, self.end, self if role == _PAIR else None)

    @property
    def needs_list(self) -> bool:
        """Whether the next item must be a plain list."""
        return self.role in _HOLDS or (self.role == _SET_BODY and self.left == 1)


_NO_LIST = "the members of a set and the pairs of a dict are plain lists, and each pair has two items"


def _comparisons(frame: bytes) -> int:
    """Return an upper bound of the key comparisons that decoding the frame takes."""
    at, total = 0, 0
    level = _Level(_ITEMS, 1, 0, len(frame))
    outer: list[_Level] = []
    while total <= MOST_COMPARISONS:
        while level.left == 0:
            if level.keys:
                total += _cost(level.keys)
            if not outer:
                return total
            ended, level = level, outer.pop()
            at = _end_of(ended, level, at)
        if at >= level.end:
            break
        began = at
        kind, width, size = HEADS[frame[at]]
        at += 1
        if width:
            size += int.from_bytes(frame[at : at + width], "big")
            at += width
        if kind == EXTENSION_HEAD:
            code, at = frame[at] if at < level.end else TEXT, at + 1
        else:
            code = TEXT
        if kind in (_LIST, _MAP):
            outer.append(level)
            level = level.inner(kind, size, began)
        elif level.role > _KEYS_AND_ITEMS and level.needs_list:
            raise ValueError(_NO_LIST)
        elif kind == EXTENSION_HEAD and code not in OPAQUE:
            if at + size > level.end:
                raise ValueError("it has an extension that ends too late")
            outer.append(level)
            level = _Level(_ROLES.get(code, _ITEMS), 1, began, at + size)
        else:
            at += size
            if level.role and kind != TEXT_HEAD:
                _count(level, at - began)
            else:
                level.left -= 1
        if len(outer) > _MAX_DEPTH:
            raise ValueError(f"it nests more than {_MAX_DEPTH} levels deep")
    if total <= MOST_COMPARISONS and level.end < len(frame):
        raise ValueError("it has an extension that ends too early")
    return total + sum(_cost(one.keys) for one in (*outer, level))


def _end_of(ended: _Level, level: _Level, at: int) -> int:
    """Return the offset after the container ``ended``, and count that container as an item of ``level``.

    ``at`` is the offset up to which the frame was read.
    """
    if ended.end != level.end:  # an extension, whose size says where it ends
        if at > ended.end:
            raise ValueError("it has an extension that ends too early")
        at = ended.end
    _count(level, at - ended.began)
    return at


def _count(level: _Level, size: int) -> None:
    """Count an item of ``level`` that is not text, and has ``size`` bytes, if it is a key."""
    if level.role and level.at_key:
        (level.owner or level).keys += 1 + size // _SHORT_KEY_BYTES
    level.left -= 1


def _cost(keys: int) -> int:
    return keys * keys if keys > _SMALL_MAP_KEYS else 0
