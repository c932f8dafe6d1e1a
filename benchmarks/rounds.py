"""Playing the scenarios: everybody in turns, round after round, and counting afterwards what is there."""

import asyncio
import gc
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field

from scenarios import Expected, Scenario
from subjects.lineup import subject_for
from subjects.subject import Subject

import servers


@dataclass(frozen=True)
class LeftOut:
    """Somebody took no part, in one scenario or, with None, in any."""

    subject: str
    scenario: str | None
    reason: str


@dataclass
class Result:
    """All that was measured on one kind of database."""

    kind: str
    rates: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """By scenario and subject: units per second, of each round."""
    settings: dict[str, str] = field(default_factory=dict)
    left_out: list[LeftOut] = field(default_factory=list)

    def is_out(self, subject: str) -> bool:
        """Whether it takes part in no scenario."""
        return any(out.subject == subject and out.scenario is None for out in self.left_out)


@dataclass(frozen=True)
class Plan:
    """What is to be measured, and who wants to hear how it goes."""

    names: Sequence[str]
    scenarios: Sequence[Scenario]
    rounds: int
    seconds: float
    """That a round of one subject shall take, about."""
    told: Callable[[LeftOut], None]
    advanced: Callable[[], None]


def measure(kind: str, plan: Plan) -> Result:
    """Everybody's figures on fresh databases of this kind. Skips as a test would, if there is no such server."""
    result = Result(kind)
    with ExitStack() as stack:
        databases = _Databases(kind, stack)
        for scenario in plan.scenarios:
            subjects = _Subjects(result, plan, scenario)
            subjects.make(databases)
            result.rates[scenario.name] = asyncio.run(subjects.play())
    return result


class _Databases:
    """One for each subject, and on SQLite for each scenario, too.

    There, cubepi reads a whole table to load a thread: what other scenarios had left would be held against it.
    """

    def __init__(self, kind: str, stack: ExitStack) -> None:
        self._kind = kind
        self._stack = stack
        self._urls: dict[str, str] = {}

    def url_of(self, name: str) -> tuple[str, bool]:
        """The URL, and whether the database is new."""
        if self._kind not in servers.SERVERS:
            folder = self._stack.enter_context(tempfile.TemporaryDirectory())
            return f"sqlite:///{folder}/threads.db", True
        is_new = name not in self._urls
        if is_new:
            self._urls[name] = self._stack.enter_context(servers.fresh_database(self._kind))
        return self._urls[name], is_new


class _Subjects:
    """Those that take part in one scenario. Who fails is left out from then on, with its reason."""

    def __init__(self, result: Result, plan: Plan, scenario: Scenario) -> None:
        self._result = result
        self._plan = plan
        self._scenario = scenario
        self._new: list[Subject] = []
        self._all: list[Subject] = []

    def make(self, databases: _Databases) -> None:
        for name in self._plan.names:
            if self._result.is_out(name):
                continue
            try:
                found = subject_for(name, self._result.kind, self._scenario.name)
            except ImportError as error:
                self._leave_out(name, error)
                continue
            if found is None:
                continue
            if self._result.kind not in found.kinds:
                self._leave_out(name, found.elsewhere)
                continue
            url, is_new = databases.url_of(name)
            subject = found(self._result.kind, url)
            self._all.append(subject)
            if is_new:
                self._new.append(subject)

    async def play(self) -> dict[str, list[float]]:
        """Units per second of each, in each round."""
        async with AsyncExitStack() as stack:
            players = {}
            _settle()
            for subject in self._all:
                if player := await self._started(subject, stack):
                    players[subject.name] = player
            self._plan.advanced()
            _settle()
            for number in range(self._plan.rounds):
                # Another one begins each time: who follows a noisy neighbour does so only once.
                order = list(players)
                begins = number % max(1, len(order))
                for name in order[begins:] + order[:begins]:
                    await self._attempt(name, players, players[name].play_round)
                self._plan.advanced()
            for name in list(players):
                await self._attempt(name, players, players[name].check)
        return {name: player.rates for name, player in players.items()}

    async def _started(self, subject: Subject, stack: AsyncExitStack) -> "_Player | None":
        try:
            if subject in self._new:
                await subject.create_tables()
            await stack.enter_async_context(subject)
            settings = await subject.settings()
        except Exception as error:
            self._leave_out(subject.name, error)
            return None
        if settings is not None:
            self._result.settings[subject.name] = settings
        player = _Player(subject, self._scenario)
        players = {subject.name: player}
        await self._attempt(subject.name, players, lambda: player.warm_up(self._plan.seconds))
        return players.get(subject.name)

    async def _attempt(self, name: str, players: dict[str, "_Player"], what: Callable[[], Awaitable[None]]) -> None:
        try:
            await what()
        except Exception as error:
            del players[name]
            self._leave_out(name, error, self._scenario.name)

    def _leave_out(self, name: str, why: Exception | str, scenario: str | None = None) -> None:
        reason = why if isinstance(why, str) else f"{type(why).__name__}: {why}"
        out = LeftOut(name, scenario, reason.strip().partition("\n")[0])
        self._result.left_out.append(out)
        self._plan.told(out)


def _settle() -> None:
    """Let nobody's round be spent on looking for garbage in what is there by now, which is much: it stays."""
    gc.collect()
    gc.freeze()


class _Player:
    """One subject in one scenario."""

    def __init__(self, subject: Subject, scenario: Scenario) -> None:
        self.rates: list[float] = []
        self._subject = subject
        self._scenario = scenario
        self._size = 1
        self._played = 0
        self._expected: list[Expected] = []

    async def warm_up(self, seconds: float) -> None:
        """Play until it takes long enough to tell how much work fills a round."""
        taken, _ = await self._play()
        if taken < seconds:  # else the least there is fills a round
            while (taken := (await self._play())[0]) < seconds / 4:
                self._size *= 4
        self._size = max(1, round(self._size * seconds / taken))
        self._expected.clear()

    async def play_round(self) -> None:
        """Play, and take down how fast."""
        taken, units = await self._play()
        self.rates.append(units / taken)

    async def _play(self) -> tuple[float, int]:
        self._played += 1
        # Threads that nobody has seen before.
        name = f"{self._scenario.name.replace(' ', '-')}-{self._played}"
        work = await self._scenario.made_ready(self._subject, name, self._size)
        gc.collect()
        began = time.perf_counter()
        await work.play(self._subject)
        taken = time.perf_counter() - began
        self._expected += work.expected
        return taken, work.units

    async def check(self) -> None:
        """Raise NotThere if anything is missing of what was played in rounds."""
        async with self._subject.checked() as subject:
            for expected in self._expected:
                await expected.check(subject)
