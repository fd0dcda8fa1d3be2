"""Table of all declared IDs, which registers them with Gymnasium and PettingZoo.

A row is an :class:`EnvCard`: strings only, so that reading the table imports no environment. Rows come from
the entry-point group ``envweave_gym.envs`` of every installed package; ours (:data:`CARDS`) come in the same
way. The value of such an entry point is a list of cards (or of plain dicts with their fields), or a function
that returns one::

    # pyproject.toml of a package that brings an ID
    [project.entry-points."envweave_gym.envs"]
    plug = "plug.cards:CARDS"

    # plug/cards.py
    CARDS = [{"id": "plug/Thing-v0", "doc": "A thing to try.", "gym": "plug.thing:ThingEnv"}]

Keep the cards in a module of their own that imports no environment: every import of ``envweave_gym`` imports it,
and must stay cheap. If ``plug`` is imported first, as by ``make("plug:plug/Thing-v0")``, the cards are imported
before the rest of ``plug``, which is still importing ``envweave_gym``.
"""

from __future__ import annotations

import pkgutil
import warnings
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, Literal

import gymnasium
import msgspec
import pettingzoo

from envweave_gym.core.faults import PACKAGE, InvalidArgument, UnknownEnvironment, shown

GROUP = "envweave_gym.envs"

Api = Literal["gym", "aec", "parallel"]
REGISTRIES: dict[Api, dict[str, Any]] = {
    "gym": gymnasium.registry,
    "parallel": pettingzoo.parallel_registry,
    "aec": pettingzoo.aec_registry,
}
"""The registry of each API; ``make`` treats a game in both PettingZoo registries as parallel by default."""

_REMOTE_ENV = "envweave_gym.remote.env:RemoteEnv"
_Id = Annotated[str, msgspec.Meta(pattern=r"^[\w-]+/[\w.-]+-v\d+$")]
_Path = Annotated[str, msgspec.Meta(pattern=r"^[\w.]+:\w+$")]


class EnvCard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Declaration of an ID: its constructors, each as ``"module:attribute"``, its arguments and limits.

    A card has either ``gym``, with an optional ``vector``, or at least one of ``aec`` and ``parallel``.
    """

    id: _Id
    """The ID, as ``namespace/Name-v0``."""
    doc: str
    """Description in one line."""
    gym: _Path | None = None
    """Constructor of the plain ``gymnasium.Env``."""
    vector: _Path | None = None
    """Constructor of a native ``gymnasium.vector.VectorEnv``; without one, vectors step single environments.

    It is called with ``num_envs``, ``autoreset_mode`` and ``max_steps`` beside the kwargs.
    """
    aec: _Path | None = None
    """Constructor of the plain ``pettingzoo.AECEnv``; without one the game is converted from ``parallel``."""
    parallel: _Path | None = None
    """Constructor of the plain ``pettingzoo.ParallelEnv``; without one the game is converted from ``aec``."""
    game: _Id | None = None
    """ID of the multi-agent variant of a Gymnasium ID, in which other agents play parts of it."""
    max_steps: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Step limit of an episode, unless ``make`` is given another; for Gymnasium IDs."""
    kwargs: dict[str, Any] = {}
    """Default arguments of the constructors, as JSON."""
    trial: dict[str, Any] = {}
    """Arguments with which the environment works on any machine, such as without a data set; for tests."""
    needs: str = ""
    """The package or server that the environment needs whatever its arguments are, such as ``"an ORS server"``."""
    extra: str | None = None
    """Extra of the package that installs the modules in ``requires``."""
    requires: tuple[str, ...] = ()
    """Modules that the environment needs; if one is missing, the error names the extra."""
    nondeterministic: bool = False
    """Whether the same seed can lead to different episodes."""
    wire_kwargs: tuple[str, ...] = ()
    """Kwargs and reset options that remote clients may give; ``"name=value"`` allows that value only."""
    config: _Path | None = None
    """The ``core.config.Config`` class of the constructor, whose ``wire`` fields remote clients may give too."""
    image: str | None = None
    """Container image whose server offers the environment."""
    data: bool = False
    """Whether the environment reads data files of this machine, which are mounted into its containers."""
    call_deadline: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """Seconds that one step may take on a server, if that is longer than the default."""
    concurrent: bool = False
    """Whether a vector steps its rows in parallel threads, for environments whose steps wait for other processes.

    Their ``close`` may be called from another thread, and ends a step that is running.
    """
    thread_affine: bool = False
    """Whether the environment must be used in the thread that made it, as one that draws with OpenGL.

    A server runs each such environment, and each without a card, in a thread of its own.
    """
    proxy: bool = False
    """Whether the ID stands for an environment on a server, whose URL must be in the kwargs; it is not served."""

    def __post_init__(self) -> None:
        if (self.gym is None) == (self.aec is None and self.parallel is None):
            raise InvalidArgument(f"{self.id}: a card has either gym=, or aec= or parallel= or both")
        if self.gym is None and (self.vector or self.max_steps or self.game):
            raise InvalidArgument(f"{self.id}: vector=, max_steps= and game= go with gym=; a game has none")

    @property
    def is_remote(self) -> bool:
        """Whether the ID stands for an environment on a server of this package."""
        return self.proxy and self.gym == _REMOTE_ENV

    @property
    def remote_kwargs(self) -> tuple[str, ...]:
        """Kwargs and reset options that remote clients may give: ``wire_kwargs``, and fields of ``config``."""
        if self.config is None:
            return self.wire_kwargs
        from envweave_gym.core.config import wire_names

        return *self.wire_kwargs, *wire_names(pkgutil.resolve_name(self.config))

    @property
    def is_game(self) -> bool:
        """Whether the environment is a PettingZoo game."""
        return self.gym is None

    @property
    def kinds(self) -> tuple[Api, ...]:
        """APIs that the environment can be made with."""
        return ("aec", "parallel") if self.is_game else ("gym",)

    @property
    def is_self_contained(self) -> bool:
        """Whether the environment works on any machine with the arguments of its trial."""
        return not (self.proxy or self.needs)

    @property
    def leads_to(self) -> dict[Api, str]:
        """The ID that ``make`` makes for each API: its own ID, or for the APIs of games its ``game`` if it has one."""
        own = dict.fromkeys(self.kinds, self.id)
        return own if self.game is None else {**own, "aec": self.game, "parallel": self.game}


CARDS = [
    EnvCard(
        id="envweave/Counter-v0",
        doc="Add to a counter until it reaches its target: the smallest example.",
        gym="envweave_gym.envs.toy.counter:CounterEnv",
        max_steps=100,
        wire_kwargs=("target",),
        image="envweave-core",
    ),
    EnvCard(
        id="envweave/Echo-v0",
        doc="Text in, the same text out; a tenth of a point for each character.",
        gym="envweave_gym.envs.toy.echo:EchoEnv",
        max_steps=100,
        image="envweave-echo",
    ),
    EnvCard(
        id="envweave/PickLetter-v0",
        doc="Answer `pick B` with B: four letters, one step, the smallest task for a language model.",
        gym="envweave_gym.envs.toy.pick_letter:PickLetterEnv",
        image="envweave-core",
    ),
    EnvCard(
        id="envweave/Addition-v0",
        doc="Sums in a few-shot prompt of plain text; the first line of the reply is the result or not.",
        gym="envweave_gym.envs.toy.addition:AdditionEnv",
        wire_kwargs=("split", "shots", "low", "high", "same_examples"),
        image="envweave-core",
    ),
    EnvCard(
        id="envweave/LineWorld-v0",
        doc="Walk along a line to the goal; native vector form.",
        gym="envweave_gym.envs.toy.lineworld:LineWorldEnv",
        vector="envweave_gym.envs.toy.lineworld:LineWorldVectorEnv",
        max_steps=40,
        wire_kwargs=("length", "slip"),
        image="envweave-lineworld",
    ),
    EnvCard(
        id="envweave/CodeFix-v0",
        doc="Choose the operator that fixes a small program; the tests decide; native vector form.",
        gym="envweave_gym.envs.codefix.codefix:CodeFixEnv",
        vector="envweave_gym.envs.codefix.codefix:CodeFixVectorEnv",
        wire_kwargs=("observation",),
        image="envweave-codefix",
    ),
    EnvCard(
        id="envweave/CodeAct-v0",
        doc="Python as actions, in a sandbox: a namespace that lasts, tools, final_answer.",
        gym="envweave_gym.envs.code.code_act:CodeActEnv",
        max_steps=30,
        config="envweave_gym.envs.code.code_config:CodeActConfig",
        image="envweave-codeact",
        concurrent=True,
    ),
    EnvCard(
        id="envweave/Coding-v0",
        doc="Python as actions; stdout, stderr and an exit code; safety and quality are judged.",
        gym="envweave_gym.envs.code.coding:CodingProgramEnv",
        max_steps=100,
        config="envweave_gym.envs.code.code_config:CodingConfig",
        image="envweave-coding",
        concurrent=True,
    ),
    EnvCard(
        id="envweave/REPL-v0",
        doc="Recursive language models: Python over a long context, sub-calls of models, FINAL(answer).",
        gym="envweave_gym.envs.repl.repl_env:REPLProgramEnv",
        game="envweave/REPLTeam-v0",
        config="envweave_gym.envs.repl.repl_config:ReplModelConfig",
        image="envweave-repl",
        concurrent=True,
    ),
    EnvCard(
        id="envweave/GSM8K-v0",
        doc="A word problem of grade school; the reply is text, and its number is right or wrong.",
        gym="envweave_gym.envs.gsm8k.gsm8k:GSM8KEnv",
        extra="datasets",
        trial={"dataset": "synthetic"},
        config="envweave_gym.envs.gsm8k.gsm8k_config:GSM8KConfig",
        image="envweave-gsm8k",
        data=True,
    ),
    EnvCard(
        id="envweave/GSM8KMCQ-v0",
        doc="A word problem of grade school with four options; the wrong ones are results of usual slips.",
        gym="envweave_gym.envs.gsm8k.multiple_choice:GSM8KMCQEnv",
        extra="datasets",
        trial={"dataset": "synthetic"},
        config="envweave_gym.envs.gsm8k.gsm8k_config:GSM8KMCQConfig",
        image="envweave-gsm8k",
        data=True,
    ),
    EnvCard(
        id="envweave/SWEBenchLiteLocMCQ-v0",
        doc="Which file must change to resolve an issue of a real project? SWE-bench Lite, with options.",
        gym="envweave_gym.envs.swebench.localisation:SWEBenchLocEnv",
        extra="datasets",
        trial={"dataset": "synthetic"},
        config="envweave_gym.envs.swebench.swebench_config:LocConfig",
        image="envweave-swebench-loc",
        data=True,
    ),
    EnvCard(
        id="envweave/SWEBenchLitePatch-v0",
        doc="Resolve an issue of a real project with a patch; its tests decide. SWE-bench Lite.",
        gym="envweave_gym.envs.swebench.patching:SWEBenchPatchEnv",
        extra="swebench",
        trial={"dataset": "synthetic"},
        config="envweave_gym.envs.swebench.swebench_config:PatchConfig",
        image="envweave-swebench-patch",
        data=True,
        call_deadline=3600.0,
        concurrent=True,
    ),
    EnvCard(
        id="envweave/Remote-v0",
        doc="Any environment of a server: url='http://host:port', env_id='…'.",
        gym=_REMOTE_ENV,
        proxy=True,
    ),
    EnvCard(
        id="envweave/OpenEnv-v0",
        doc="Any environment of an OpenEnv server, image or Space: url='openenv://host:port'.",
        gym="envweave_gym.hubs.openenv.client_env:OpenEnvClientEnv",
        kwargs={"on_fault": "truncate"},
        nondeterministic=True,
        proxy=True,
        concurrent=True,
    ),
    EnvCard(
        id="envweave/KuhnPoker-v0",
        doc="Three-card poker for two, turn by turn; its exact value is known.",
        aec="envweave_gym.envs.games.kuhn_poker:raw_env",
        wire_kwargs=("max_cycles",),
        image="envweave-core",
    ),
    EnvCard(
        id="envweave/CodeReview-v0",
        doc="An author picks the fix of a program, a reviewer accepts it or sends it back; shared reward.",
        aec="envweave_gym.envs.games.code_review:raw_env",
        wire_kwargs=("comments", "max_rounds", "max_cycles"),
        image="envweave-core",
    ),
    EnvCard(
        id="envweave/LineRace-v0",
        doc="All runners move at once along a line; the first at the goal wins.",
        parallel="envweave_gym.envs.games.line_race:raw_env",
        wire_kwargs=("runners", "length", "slip", "max_cycles"),
        image="envweave-core",
    ),
    EnvCard(
        id="envweave/REPLTeam-v0",
        doc="The REPL whose sub-calls other agents answer: root writes programs, the others answer prompts.",
        aec="envweave_gym.envs.repl.repl_team:raw_env",
        config="envweave_gym.envs.repl.repl_config:ReplTeamConfig",
        image="envweave-repl",
    ),
    EnvCard(
        id="envweave/TextArena-v0",
        doc="The games of TextArena: texts in turn, for one to fifteen players.",
        aec="envweave_gym.envs.language.text_arena:raw_env",
        config="envweave_gym.envs.language.text_arena_config:TextArenaConfig",
        extra="language",
        requires=("textarena",),
        needs="textarena",
    ),
    EnvCard(
        id="envweave/ReasoningGym-v0",
        doc="The tasks of reasoning-gym: a generated question, and a verifier that scores the reply.",
        gym="envweave_gym.envs.language.reasoning_gym:ReasoningGymEnv",
        config="envweave_gym.envs.language.reasoning_gym_config:ReasoningGymConfig",
        extra="language",
        requires=("reasoning_gym",),
        needs="reasoning-gym",
    ),
    EnvCard(
        id="envweave/GEM-v0",
        doc="The text environments of GEM: games, puzzles, and questions over data sets.",
        gym="envweave_gym.envs.language.gem:GEMEnv",
        config="envweave_gym.envs.language.gem_config:GEMConfig",
        needs="gem-llm",
    ),
    EnvCard(
        id="envweave/OpenSpiel-v0",
        doc="The games of OpenSpiel, through Shimmy: numbered moves with a mask, and a text at each turn.",
        aec="envweave_gym.envs.language.open_spiel:raw_env",
        config="envweave_gym.envs.language.open_spiel_config:OpenSpielConfig",
        extra="openspiel",
        requires=("pyspiel", "shimmy"),
        needs="open-spiel and shimmy",
    ),
    EnvCard(
        id="envweave/ORS-v0",
        doc="An environment on a server of the Open Reward Standard: url='http://host:port'; actions call tools.",
        gym="envweave_gym.hubs.ors.ors_env:ORSEnv",
        config="envweave_gym.hubs.ors.ors_config:OrsConfig",
        call_deadline=600.0,
        concurrent=True,
        nondeterministic=True,
        needs="a server of the Open Reward Standard",
    ),
    EnvCard(
        id="envweave/Hub-v0",
        doc="An installed environment of the Prime Environments Hub, with one agent: hub_id='owner/name'.",
        gym="envweave_gym.hubs.prime.hub_env:HubEnv",
        game="envweave/HubTeam-v0",
        config="envweave_gym.hubs.prime.hub_config:HubConfig",
        call_deadline=700.0,
        concurrent=True,
        needs="an installed package of the Prime Environments Hub",
    ),
    EnvCard(
        id="envweave/HubTeam-v0",
        doc="An installed environment of the Prime Environments Hub as a game: each of its roles is an agent.",
        aec="envweave_gym.hubs.prime.hub_team:raw_env",
        config="envweave_gym.hubs.prime.hub_config:HubConfig",
        call_deadline=700.0,
        needs="an installed package of the Prime Environments Hub",
    ),
]

_cards: dict[str, EnvCard] = {}
_packages: dict[str, str] = {}


def cards() -> dict[str, EnvCard]:
    """Return all registered cards, by ID."""
    return dict(_cards)


def card_of(env_id: str) -> EnvCard:
    """Return the card of an ID; raise ``UnknownEnvironment`` if no installed package declares it."""
    if env_id not in _cards:
        raise UnknownEnvironment(f"no installed package declares {shown(env_id)}; install the one that does")
    return _cards[env_id]


def package_of(env_id: str) -> str:
    """Return the distribution (the name for pip) that declares a registered ID."""
    return _packages[env_id]


def register_all() -> None:
    """Register the cards of all installed packages; repeated calls change nothing.

    Ours come first, so that no other package takes their IDs. Cards that cannot be registered are skipped with
    one warning for each package.
    """
    for plug_in in sorted(entry_points(group=GROUP), key=_ours_first):
        problems = _register_plug_in(plug_in)
        if problems:
            warnings.warn(f"plug-in {plug_in.name!r} ({plug_in.value}): {'; '.join(problems)}", stacklevel=2)


def _ours_first(plug_in: EntryPoint) -> tuple[bool, str, str]:
    return _package(plug_in) != PACKAGE, plug_in.name, plug_in.value


def _package(plug_in: EntryPoint) -> str:
    if plug_in.value == f"{__name__}:CARDS":
        # The name of its distribution is not read: that would parse all metadata at every import.
        return PACKAGE
    # Entry points without a distribution, as tests make them, are known by their module.
    return plug_in.dist.name if plug_in.dist is not None else plug_in.value.partition(".")[0]


def _register_plug_in(plug_in: EntryPoint) -> list[str]:
    """Register the cards of one entry point; return a phrase about each card that was skipped."""
    try:
        value = plug_in.load()
        rows = list(value if isinstance(value, list | tuple) else value())
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - foreign code may raise anything, and may leave
        return [f"its environments are left out: {_in_one_line(error)}"]
    problems: list[str] = []
    for row in rows:
        try:
            register_card(row, package=_package(plug_in))
        except Exception as error:  # noqa: BLE001 - whatever is wrong with a row must not break the next
            problems.append(f"{_name_of(row)} is left out: {_in_one_line(error)}")
    return problems


def _in_one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _name_of(row: Any) -> Any:
    return row.get("id", row) if isinstance(row, Mapping) else getattr(row, "id", row)


def register_card(row: EnvCard | Mapping[str, Any], *, package: str = PACKAGE) -> None:
    """Validate a card, or a dict with its fields, and add it to the table and the registries.

    ``package`` is the distribution that declares it. Raise ``InvalidArgument`` for a field with a wrong value, or if
    another card has the ID.
    """
    # Structs skip validation when they are built in Python; conversion from a dict validates types and limits.
    fields = msgspec.structs.asdict(row) if isinstance(row, EnvCard) else row
    try:
        card = msgspec.convert(fields, EnvCard)
    except msgspec.ValidationError as error:
        from envweave_gym.registry.card_errors import refusal

        raise refusal(fields, EnvCard, error) from None
    if _cards.get(card.id, card) != card:
        raise InvalidArgument(f"{card.id} is declared by {package_of(card.id)} already; choose another")
    # All registries are checked before the first is written, so a clash in one leaves the others unchanged.
    missing: list[Api] = [kind for kind in card.leads_to if _is_missing(kind, card)]
    _cards[card.id], _packages[card.id] = card, package
    for kind in missing:
        _register(kind, card)


def _entry_point(kind: str, env_id: str) -> str:
    """Return the string for the registries; ``entry_points.__getattr__`` turns it into a function."""
    return f"envweave_gym.registry.entry_points:{kind}({env_id})"


def _is_missing(kind: Api, card: EnvCard) -> bool:
    known = REGISTRIES[kind].get(card.id)
    if known is not None and known.entry_point != _entry_point(kind, card.leads_to[kind]):
        raise InvalidArgument(f"{card.id} is registered already, with entry point {shown(known.entry_point)}")
    return known is None


def _register(kind: Api, card: EnvCard) -> None:
    entry_point, kwargs = _entry_point(kind, card.leads_to[kind]), dict(card.kwargs)
    if kind == "gym":
        gymnasium.register(
            id=card.id,
            entry_point=entry_point,
            vector_entry_point=_entry_point("vector", card.id),
            nondeterministic=card.nondeterministic,
            order_enforce=False,  # our stack does this, and the check below
            disable_env_checker=True,
            kwargs=kwargs,
        )
    elif kind == "aec":
        pettingzoo.register("aec", card.id, entry_point, kwargs=kwargs)
    else:
        pettingzoo.register("parallel", card.id, entry_point, kwargs=kwargs)
