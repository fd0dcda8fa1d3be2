"""The mixin by which an environment adds events of its own to ``info["stream"]``."""

from __future__ import annotations

from envweave_gym.episode.stream import Event


class Emitter:
    """Mixin for environments that emit events: ``self.emit(message("user", prompt))``.

    The stream wrapper drains the events after every reset and step, numbers them and puts them into the
    stream. Events are dropped as long as no wrapper has called :meth:`listen`.
    """

    _emitted: tuple[Event, ...] | None = None

    def emit(self, *events: Event) -> None:
        """Put events into the stream."""
        if self._emitted is not None:
            self._emitted += events  # most environments emit once a step: a list would cost more

    def listen(self) -> Emitter:
        """Collect events from now on, and return the emitter for :func:`drain`."""
        self._emitted = self._emitted or ()
        return self


def drain(emitter: Emitter) -> tuple[Event, ...]:
    """Remove and return the events emitted since the last call."""
    events, emitter._emitted = emitter._emitted, ()
    return events or ()
