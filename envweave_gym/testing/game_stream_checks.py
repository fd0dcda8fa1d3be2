"""Checks of ``info["stream"]`` in games with several agents.

The stream holds the events that an agent may see, and the open requests: who must act now, or that the caller
must reset. Each agent gets its events once and in order, and only agents that are not done are asked to act.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from envweave_gym.episode.stream import Event, EventKind, Request, RequestKind
from envweave_gym.testing.reproducibility_checks import SEED
from envweave_gym.testing.stream_checks import EPISODES, demand, stream_in
from envweave_gym.testing.subject import Form, Subject
from envweave_gym.testing.traces import AECPlayer, ParallelPlayer

MAX_MOVES = 400
"""Limit of moves that are played in one episode."""


def check_game_stream_is_well_formed(subject: Subject) -> None:
    """Check that each agent gets the events that it may see, once and in order, and only live agents get requests."""
    for form in subject.stacks():
        for seed in range(SEED, SEED + EPISODES):
            with form.open() as player:
                reading = _Reading(form, player.env, seed)
                player.reset(seed)
                for _ in range(MAX_MOVES):
                    if isinstance(player, ParallelPlayer):
                        reading.after_step(player.infos)
                    elif isinstance(player, AECPlayer) and not player.over:
                        reading.before_turn()
                    if player.over:
                        break
                    player.move()


class _Reading:
    """Checks the infos of one episode as they come, and stores the events that each agent has got so far."""

    def __init__(self, form: Form, env: Any, seed: int) -> None:
        self.env, self.seed = env, seed
        self.where = f"{form.label}, seed {seed}"
        self.read: dict[str, list[Event]] = {}
        self.acted: dict[str, int] = {}

    def before_turn(self) -> None:
        """Check the infos of an AEC game before the selected agent acts, and store the events that this agent gets."""
        env: Any = self.env
        chosen: str = env.agent_selection
        live = [agent for agent in env.agents if not (env.terminations[agent] or env.truncations[agent])]
        requests = self._check_infos(env.infos)
        if live and chosen not in live:
            rule = f"there is no request while {chosen}, which is done, has to leave"
            demand(not requests, self.where, rule, requests)
        else:
            self._check_requests(requests, live)
            agents = [request.agent for request in requests]
            demand(
                not live or chosen in agents, self.where, f"the selected agent {chosen} is asked", requests
            )
        self.acted.update((chosen, request.turn) for request in requests)
        self._read(chosen, env.infos[chosen])

    def after_step(self, infos: Mapping[str, Mapping[str, Any]]) -> None:
        """Check all infos after a reset or step of a parallel game, and record the events that each agent gets."""
        live = list(self.env.agents)
        missing = [agent for agent in live if agent not in infos]
        demand(not missing, self.where, "every live agent has an info", missing)
        requests = self._check_infos(infos)
        self._check_requests(requests, live)
        self.acted.update({request.agent: request.turn for request in requests if request.agent})
        for agent, info in infos.items():
            self._read(agent, info)

    def _check_infos(self, infos: Mapping[str, Any]) -> tuple[Request, ...]:
        """Check that the infos of all agents are consistent; return the open requests."""
        streams = {agent: stream_in(f"{self.where}, {agent}", info) for agent, info in infos.items()}
        requests = next(iter(streams.values())).requests
        for agent, stream in streams.items():
            where = f"{self.where}, {agent}"
            demand(stream.requests == requests, where, "all agents see the same requests", stream.requests)
            hidden = [event for event in stream.events if not event.visible_to(agent)]
            demand(not hidden, where, "an agent reads no event that is for others alone", hidden)
            active = infos[agent].get("active")
            rule = "info['active'] is whether the agent is asked"
            demand(active is (agent in stream.agents()), where, rule, (active, requests))
            numbers = {infos[agent]["seq"], *(request.seq for request in requests)}
            demand(len(numbers) == 1, where, "requests carry info['seq']", numbers)
        return requests

    def _check_requests(self, requests: tuple[Request, ...], live: list[str]) -> None:
        where = self.where
        if not live:
            found = [(request.kind, request.agent) for request in requests]
            due = [(RequestKind.RESET, None)]
            demand(found == due, where, "after the end the one request is a reset", requests)
            return
        acting = [request.agent for request in requests if request.kind == RequestKind.ACT]
        demand(len(acting) == len(requests), where, "nobody is asked to reset before the end", requests)
        demand(bool(acting), where, "somebody is asked until the end", requests)
        demand(set(acting) <= set(live), where, f"only live agents ({', '.join(live)}) are asked", requests)
        turns = {request.turn for request in requests}
        demand(len(turns) == 1, where, "requests open at once share their turn", requests)
        demand(bool(self.acted) or turns == {0}, where, "turns count from 0", requests)
        again = [request for request in requests if request.turn <= self.acted.get(request.agent or "", -1)]
        demand(not again, where, "an agent is asked once a turn, and turns go up", again)

    def _read(self, agent: str, info: Mapping[str, Any]) -> None:
        where, read = f"{self.where}, {agent}", self.read.setdefault(agent, [])
        new = info["stream"].events
        numbers = [event.seq for event in (*read[-1:], *new)]
        in_order = all(a < b for a, b in pairwise(numbers))
        demand(in_order, where, "events come once, in order", numbers)
        read.extend(new)
        starts = [event for event in read if event.kind == EventKind.EPISODE_START]
        rule = (
            "episode_start comes first and once, and hides the seed from agents, as it decides hidden cards"
        )
        is_first = starts == read[:1] and not starts[0].data
        demand(is_first, where, rule, starts)
        record = getattr(self.env, "record", None)
        if record is not None:
            opening = record.events[0].data.get("seed")
            demand(
                opening == self.seed,
                where,
                f"the operator's episode_start names the seed {self.seed}",
                opening,
            )
            due = list(record.since(-1, agent))
            rule = "an agent has got every event that it may see"
            demand(read == due, where, rule, [event for event in due if event not in read])
