"""Checks of reset options from clients: only those that the environment or the operator allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gymnasium.vector import VectorEnv

from envweave_gym.core.arguments import check_options
from envweave_gym.core.faults import InvalidArgument, nearest, shown
from envweave_gym.vector.reset_arguments import OF_ROWS


@dataclass(frozen=True)
class ResetOptions:
    """The names of the reset options that clients may give to one environment; :meth:`check` refuses the rest."""

    name: str
    named: tuple[str, ...] | None
    """Options in ``metadata["reset_options"]``; ``None`` if the environment declares none."""
    let: tuple[str, ...]
    """Options that clients may give."""
    of_rows: tuple[str, ...]
    """Options that select the rows of a vector, which its environments never see."""

    @classmethod
    def of(cls, name: str, env: Any, allowed: tuple[str, ...], *, trusted: bool) -> ResetOptions:
        """Return the reset options that clients may give to ``env``.

        They are those of ``allowed`` that ``env`` declares in its metadata; all that it declares if it is ``trusted``;
        all of ``allowed`` if it declares none.
        """
        metadata: dict[str, Any] = getattr(env, "metadata", None) or {}
        named: tuple[str, ...] | None = metadata.get("reset_options")
        let = allowed if named is None else tuple(one for one in named if trusted or one in allowed)
        return cls(name, named, let, OF_ROWS if isinstance(env, VectorEnv) else ())

    def check(self, options: Any) -> None:
        """Raise ``InvalidArgument`` for options that the environment does not take, or clients may not give."""
        named = None if self.named is None else (*self.named, *self.of_rows)
        check_options(self.name, options, {"reset_options": named})
        let = (*self.let, *self.of_rows)
        rows = options.get("rows") if options and self.of_rows else None
        listed = rows if isinstance(rows, list | tuple) else ()  # the vector refuses anything else
        named_by_rows = [key for one in listed if isinstance(one, dict) for key in one]
        for given in [*(options or ()), *named_by_rows]:
            if given not in let:
                hint = nearest(given, let) if isinstance(given, str) else ""
                raise InvalidArgument(
                    f"{self.name}: this server lets no client give the reset option {shown(given)}{hint}; it "
                    f"lets clients give {', '.join(let) or 'none'}, and its operator may add to these with "
                    "--allow-kwargs"
                )
