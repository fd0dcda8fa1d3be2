"""Constructor arguments declared once, as a struct.

The signature of the constructor, the arguments that remote clients may give, the tables of the documentation
and the signatures of typed clients derive from it. Modules that declare a config import nothing but ``core``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, Protocol, Self, TypeVar, get_args

import msgspec

from envweave_gym.core.faults import InvalidArgument, NotAvailable, shown

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """Base of config structs, whose fields read ``name: Annotated[type, wire("…")] = default``.

    A field that remote clients may not give has ``local("…")`` in place of ``wire("…")``. Copies of an
    environment share its config.
    """

    def __deepcopy__(self, memo: object) -> Self:
        return self


class _Named(Protocol):
    name: str


def wire(doc: str, only: Sequence[str] = ()) -> msgspec.Meta:
    """Return the annotation of an argument that remote clients may give, with any value or one of ``only``.

    ``doc`` is its description in tables and docs.
    """
    return msgspec.Meta(description=doc, extra={"wire": tuple(only) or True})


def local(doc: str) -> msgspec.Meta:
    """Return the annotation of an argument that remote clients may not give; ``doc`` is its description."""
    return msgspec.Meta(description=doc)


def wire_names(config: type[Config]) -> tuple[str, ...]:
    """Return the arguments that remote clients may give, in the form of ``EnvCard.wire_kwargs``."""
    found: list[str] = []
    for field in _fields(config):
        allowed = next((meta.extra["wire"] for meta in _metas(field) if meta.extra), None)
        values = [] if allowed is True or allowed is None else [f"{field.name}={one}" for one in allowed]
        found += [field.name] if allowed is True else values
    return tuple(found)


def arguments_table(config: type[Config]) -> str:
    """Return a Markdown table of the arguments, their defaults and their descriptions."""
    docs = {one.name: " ".join(meta.description or "" for meta in _metas(one)) for one in _fields(config)}
    rows = [f"| `{one.name}` | `{_short(_default_of(one))}` | {docs[one.name]} |" for one in _fields(config)]
    return "\n".join(["| argument | default | |", "|---|---|---|", *rows])


def _default_of(field: msgspec.structs.FieldInfo) -> Any:
    """Return the default, or what the factory of a mutable one makes."""
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def _short(default: Any) -> str:
    text = repr(default)
    return text if len(text) <= 40 else f"{text[:39]}…"


def signature_of(config: type[Config]) -> inspect.Signature:
    """Return a signature with the fields as parameters; those of the most derived struct come first."""
    return inspect.Signature(
        [
            inspect.Parameter(
                field.name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=field.default,
                annotation=get_args(field.type)[0] if _metas(field) else field.type,
            )
            for field in _fields(config)
        ]
    )


def configured(config: type[Config]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a constructor that takes a config, so that callers can give the config's fields as arguments.

    Callers may also give the config itself. The class must have a ``name``; errors begin with it.
    """
    signature = signature_of(config)

    def decorate(construct: Callable[..., None]) -> Callable[..., None]:
        @wraps(construct)
        def __init__(self: _Named, *args: Any, **kwargs: Any) -> None:
            with named(self.name):
                if len(args) == 1 and isinstance(args[0], config):
                    construct(self, args[0], **kwargs)
                    return
                try:
                    given = signature.bind(*args, **kwargs).arguments
                except TypeError as error:
                    raise TypeError(f"{type(self).__name__}() {error}") from None
                construct(self, config(**given))

        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        # The function inspect.signature() reads this instead of (*args, **kwargs).
        vars(__init__)["__signature__"] = signature.replace(parameters=[own, *signature.parameters.values()])
        return __init__

    return decorate


def takes_arguments_of(
    config: type[Config], **defaults: Any
) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Decorate a function that passes its ``**kwargs`` on, so that its signature shows the fields of a config.

    ``defaults`` are defaults of the function that differ from those of the config.
    """

    def decorate(function: Callable[_P, _T]) -> Callable[_P, _T]:
        shown = inspect.signature(function)
        own = [one for one in shown.parameters.values() if one.kind is not one.VAR_KEYWORD]
        more = [one for one in signature_of(config).parameters.values() if one.name not in shown.parameters]
        keywords = [
            one.replace(kind=one.KEYWORD_ONLY, default=defaults.get(one.name, one.default)) for one in more
        ]
        vars(function)["__signature__"] = shown.replace(parameters=[*own, *keywords])
        return function

    return decorate


@contextmanager
def named(name: str) -> Generator[None]:
    """Put ``name`` before the text of each ``InvalidArgument`` or ``NotAvailable`` that the ``with`` block raises."""
    try:
        yield
    except (InvalidArgument, NotAvailable) as error:
        if str(error).startswith(name):
            raise
        kind = type(error) if isinstance(error, NotAvailable) else InvalidArgument
        raise kind(f"{name}: {error}") from error.__cause__


def one_of(name: str, value: Any, allowed: Iterable[str]) -> None:
    """Raise ``InvalidArgument`` unless the argument ``name`` has one of the ``allowed`` values."""
    if not isinstance(value, str) or value not in allowed:
        *more, last = map(repr, allowed)
        known = f"{', '.join(more)} and {last}" if more else last
        raise InvalidArgument(f"{name}={shown(value)} is unknown; there are {known}")


def true_or_false(name: str, value: Any) -> None:
    """Refuse a value that is no bool."""
    if type(value) is not bool:
        raise InvalidArgument(f"{name}={shown(value)} is not True or False")


def _fields(config: type[Config]) -> list[msgspec.structs.FieldInfo]:
    # msgspec lists the fields of base structs first; here those of the derived struct come first.
    fields = {field.name: field for field in msgspec.structs.fields(config)}
    return [fields[name] for name in dict.fromkeys(_declared(config))]


def _declared(config: type[Config]) -> Iterator[str]:
    for one in config.__mro__:
        yield from (name for name in vars(one).get("__annotations__", {}) if name in config.__struct_fields__)


def _metas(field: msgspec.structs.FieldInfo) -> list[msgspec.Meta]:
    return [meta for meta in getattr(field.type, "__metadata__", ()) if isinstance(meta, msgspec.Meta)]
