"""The scenarios: what a round of each consists of, and what must be in the database afterwards."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from subjects.subject import Call, Script, Subject

AT_ONCE = 32
LONG = 1_000
"""Messages of a thread that is loaded, forked or appended whole."""
_RUNS = 10
"""Completed runs of a thread that is forked."""
_APPENDS_PER_TURN = 3


class NotThere(Exception):
    """What a subject was asked to write is not in the database, or not all of it."""


@dataclass(frozen=True)
class Expected:
    """What a thread must hold after its round."""

    thread_id: str
    messages: int
    last_run_id: str | None = None
    extra: dict[str, Any] | None = None

    async def check(self, subject: Subject) -> None:
        """Raise NotThere unless it holds exactly that."""
        found = await subject.count(self.thread_id)
        if found != self.messages:
            raise NotThere(f"{found} messages are in {self.thread_id}, and not {self.messages}")
        if self.last_run_id is not None:
            found, extra = await subject.completed(self.thread_id, self.last_run_id)
            if found != self.messages:
                raise NotThere(f"{found} messages of {self.thread_id} are in completed runs, and not {self.messages}")
            if self.extra is not None and extra != self.extra:
                raise NotThere(f"the extra of {self.thread_id} is not what was saved last")


@dataclass(frozen=True)
class Work:
    """A round that is ready to be played: all it needs was made before the clock runs."""

    scripts: list[Script]
    units: int
    """Messages; of turns, turns."""
    expected: list[Expected]

    async def play(self, subject: Subject) -> None:
        if len(self.scripts) == 1:
            await subject.play(self.scripts[0])
        else:
            await subject.play_at_once(self.scripts)


@dataclass(frozen=True)
class Scenario:
    """One thing that is measured."""

    name: str
    made_ready: Callable[[Subject, str, int], Awaitable[Work]]
    """Makes a round ready: by whom, on threads whose names begin like this, and how much work."""


async def _append(subject: Subject, prefix: str, size: int) -> Work:
    return _conversations(subject, [prefix], size)


async def _append_at_once(subject: Subject, prefix: str, size: int) -> Work:
    return _conversations(subject, _names(prefix), size)


def _conversations(subject: Subject, thread_ids: list[str], size: int) -> Work:
    return Work(
        [[Call("append", (thread, [message])) for message in subject.messages(size)] for thread in thread_ids],
        size * len(thread_ids),
        [Expected(thread, size) for thread in thread_ids],
    )


async def _turn(subject: Subject, prefix: str, size: int) -> Work:
    return _turns(subject, [prefix], size)


async def _turn_at_once(subject: Subject, prefix: str, size: int) -> Work:
    return _turns(subject, _names(prefix), size)


def _turns(subject: Subject, thread_ids: list[str], size: int) -> Work:
    return Work(
        [
            [call for number in range(1, size + 1) for call in _calls_of_turn(subject, thread, number)]
            for thread in thread_ids
        ],
        size * len(thread_ids),
        [Expected(thread, size * _APPENDS_PER_TURN, f"run-{size}", _extra(size)) for thread in thread_ids],
    )


def _calls_of_turn(subject: Subject, thread_id: str, number: int) -> list[Call]:
    run_id = f"run-{number}"
    return [
        Call("claim_run", (thread_id, run_id)),
        *(Call("append", (thread_id, [message])) for message in subject.messages(_APPENDS_PER_TURN, run_id)),
        Call("save_extra", (thread_id, _extra(number))),
        Call("mark_run_complete", (thread_id, run_id)),
    ]


def _extra(number: int) -> dict[str, Any]:
    return {"turn": number, "plan": ["look", "think", "answer"]}


async def _load(subject: Subject, prefix: str, size: int) -> Work:
    await subject.append(prefix, subject.messages(LONG))
    return Work([[Call("load", (prefix,))] * size], LONG * size, [Expected(prefix, LONG)])


async def _fork(subject: Subject, prefix: str, size: int) -> Work:
    for number in range(1, _RUNS + 1):
        await subject.claim_run(prefix, f"run-{number}")
        await subject.append(prefix, subject.messages(LONG // _RUNS, f"run-{number}"))
        await subject.mark_run_complete(prefix, f"run-{number}")
    last = f"run-{_RUNS}"
    targets = [f"{prefix}-fork-{number}" for number in range(size)]
    forks = [Call("fork", (prefix, target, last)) for target in targets]
    return Work([forks], LONG * size, [Expected(targets[-1], LONG, last)])


async def _bulk(subject: Subject, prefix: str, size: int) -> Work:
    threads = [f"{prefix}-{number}" for number in range(size)]
    appends = [Call("append", (thread, subject.messages(LONG))) for thread in threads]
    return Work([appends], LONG * size, [Expected(threads[-1], LONG)])


def _names(prefix: str) -> list[str]:
    return [f"{prefix}-{number}" for number in range(AT_ONCE)]


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("append", _append),
        Scenario("append x32", _append_at_once),
        Scenario("turn", _turn),
        Scenario("turn x32", _turn_at_once),
        Scenario("load", _load),
        Scenario("load dict", _load),
        Scenario("fork", _fork),
        Scenario("bulk", _bulk),
        Scenario("bulk dict", _bulk),
    )
}
