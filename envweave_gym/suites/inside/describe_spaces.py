"""Spaces as data, in the form of ``envweave_gym/wire/spaces.py``, for the classes of Gymnasium 0.28-1 and old gym."""

from __future__ import annotations

from typing import Any, Callable

from . import codec

_PACKAGES = ("gymnasium", "gym")
_HARMLESS_ATTRIBUTES = {
    *("__init__", "__repr__", "__module__", "__doc__", "__annotations__", "__parameters__", "__orig_bases__"),
    *("__firstlineno__", "__static_attributes__", "__annotations_cache__", "__annotate_func__"),
    *("__abstractmethods__", "_abc_impl"),
}
"""Attributes that a subclass may define and still have the members of its base class."""


def space_to_data(space: Any) -> dict[str, Any]:
    """Return the packed data of a space; one of an unknown class gets the type ``Foreign``, with its nearest base."""
    known = _known_class(space)
    base = None
    if known is not None:
        base = {"type": known.__name__, **_TO_DATA[known.__name__](space)}
        between = type(space).__mro__[: type(space).__mro__.index(known)]
        if all(vars(kind).keys() <= _HARMLESS_ATTRIBUTES for kind in between):
            return base
    dtype = getattr(space, "dtype", None)
    shape = getattr(space, "shape", None)
    return {
        "type": "Foreign",
        "class": f"{type(space).__module__}:{type(space).__qualname__}",
        "repr": codec.shown(space),
        "shape": None if shape is None else [int(one) for one in shape],
        "dtype": None if dtype is None else codec.np.dtype(dtype).str,
        "base": base,
        "recipe": None,
    }


def _known_class(space: Any) -> Any:
    for kind in type(space).__mro__:
        if kind.__name__ in _TO_DATA and kind.__module__.partition(".")[0] in _PACKAGES:
            return kind
    return None


def parts_of(space: Any) -> list[Any]:
    """Return the spaces inside a space, in the order in which they are sent."""
    known = _known_class(space)
    kind = "" if known is None else known.__name__
    if kind == "Dict":
        return list(space.spaces.values())
    if kind in ("Tuple", "OneOf"):
        return list(space.spaces)
    if kind == "Sequence":
        return [space.feature_space]
    if kind == "Graph":
        return [space.node_space, *([] if space.edge_space is None else [space.edge_space])]
    return []


def _box(space: Any) -> dict[str, Any]:
    low, high = (_uniform(codec.np.asarray(bound)) for bound in (space.low, space.high))
    shape = [int(one) for one in space.shape]
    return {"low": codec.exact(low), "high": codec.exact(high), "shape": shape, "dtype": space.dtype.str}


def _uniform(bound: Any) -> Any:
    """Return a single number if all elements of a bound are equal."""
    return bound.flat[0] if bound.size and (bound == bound.flat[0]).all() else bound


def _dtype(space: Any) -> str:
    return codec.np.dtype(getattr(space, "dtype", None) or codec.np.int64).str


def _discrete(space: Any) -> dict[str, Any]:
    return {"n": int(space.n), "start": int(getattr(space, "start", 0)), "dtype": _dtype(space)}


def _multi_discrete(space: Any) -> dict[str, Any]:
    start = getattr(space, "start", None)
    start = codec.np.zeros_like(space.nvec) if start is None else start
    return {"nvec": codec.exact(space.nvec), "start": codec.exact(start), "dtype": _dtype(space)}


def _multi_binary(space: Any) -> dict[str, Any]:
    n: Any = getattr(space, "n", None)
    return {"n": int(n) if codec.np.ndim(n) == 0 else [int(one) for one in n]}


def _text(space: Any) -> dict[str, Any]:
    characters = getattr(space, "characters", None)
    charset = characters if isinstance(characters, str) else "".join(space.character_set)
    return {"max_length": int(space.max_length), "min_length": int(space.min_length), "charset": charset}


def _graph(space: Any) -> dict[str, Any]:
    edge = None if space.edge_space is None else space_to_data(space.edge_space)
    return {"node": space_to_data(space.node_space), "edge": edge}


def _all(spaces: Any) -> list[dict[str, Any]]:
    return [space_to_data(one) for one in spaces]


_TO_DATA: dict[str, Callable[[Any], dict[str, Any]]] = {
    "Box": _box,
    "Discrete": _discrete,
    "MultiDiscrete": _multi_discrete,
    "MultiBinary": _multi_binary,
    "Text": _text,
    "Dict": lambda s: {
        "names": [codec.exact(name) for name in s.spaces],
        "spaces": _all(s.spaces.values()),
    },
    "Tuple": lambda s: {"spaces": _all(s.spaces)},
    "OneOf": lambda s: {"spaces": _all(s.spaces)},
    "Sequence": lambda s: {
        "space": space_to_data(s.feature_space),
        "stack": bool(getattr(s, "stack", False)),
    },
    "Graph": _graph,
}
