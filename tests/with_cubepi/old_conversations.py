"""Random conversations, written with the release's own checkpointer."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from with_cubepi.old_library import Sql, can
from with_cubepi.old_values import Values
from with_cubepi.old_worker import said

STEPS = 100


@dataclass
class Thread:
    """What has been written to a thread, as far as it decides what a fork takes."""

    messages: list[tuple[int, str | None]] = field(default_factory=list)
    """Seqs and run ids. On SQLite, which knows none, a seq is the message's place in its thread."""
    open_runs: list[str] = field(default_factory=list)
    completed_runs: list[str] = field(default_factory=list)
    """In the order of their completion_seqs."""
    asked: list[tuple[str, str | None]] = field(default_factory=list)

    def add(self, run_ids: list[str | None]) -> None:
        last = max((seq for seq, _ in self.messages), default=0)
        self.messages += [(last + number, run_id) for number, run_id in enumerate(run_ids, 1)]

    def up_to(self, run_id: str) -> list[tuple[int, str | None]]:
        """What a fork after that run copies."""
        runs = {None, *self.completed_runs[: self.completed_runs.index(run_id) + 1]}
        return [message for message in self.messages if message[1] in runs]


class Author:
    """Writes whatever comes to mind to whichever thread, and remembers where the forks were cut."""

    def __init__(self, checkpointer: Any, kind: str, seed: int) -> None:
        self._cp = checkpointer
        self._kind = kind
        self._seed = seed
        self._values = Values(seed, kind)
        self._threads: dict[str, Thread] = {}
        self.forks: dict[str, int] = {}
        """The source's seq of the last message that each fork copied."""

    async def write(self) -> None:
        """Everything, and at least once each of the cases that are easily forgotten."""
        self._threads |= {thread_id: Thread() for thread_id in self._thread_ids()}
        operations: list[Callable[[str], Awaitable[None]]] = [
            *[self._append] * 4,
            self._save_extra,
            self._ask,
            self._clear_request,
        ]
        if can("fork"):
            operations += [*[self._append_to_a_run] * 4, self._claim, self._claim, self._complete, self._fork]
        if can("save_hitl_answer"):
            operations += [self._answer, self._answer, self._clear_answers]
        for _ in range(STEPS):
            await self._values.some(operations)(self._values.some(list(self._threads)))
        await self._write_threads_with_little_in_them()
        if can("fork"):
            await self._write_forks_that_are_easy_to_get_wrong()

    async def remember(self, sql: Sql) -> None:
        """Go on with the threads that an older release has left here."""
        if self._kind == "sqlite":
            messages = "SELECT thread_id, row_number() OVER (PARTITION BY thread_id ORDER BY id), run_id FROM messages"
            runs = "SELECT thread_id, run_id, completion_seq FROM runs"
        else:
            messages = "SELECT thread_id, seq, run_id FROM cubepi_messages"
            runs = "SELECT thread_id, run_id, completion_seq FROM cubepi_runs"
        for thread_id, seq, run_id in sorted(await sql.rows(messages), key=lambda row: (row[0], row[1])):
            self._threads.setdefault(thread_id, Thread()).messages.append((seq, run_id))
        for thread_id, run_id, completed in sorted(await sql.rows(runs), key=lambda row: row[2] or 0):
            thread = self._threads.setdefault(thread_id, Thread())
            (thread.completed_runs if completed else thread.open_runs).append(run_id)

    def _thread_ids(self) -> list[str]:
        tag = f"{self._seed}"
        return [
            f"thread-{tag}",
            f"Thread-{tag}",
            f"THREAD-{tag}",
            f"café {tag}",
            f"cafe\u0301 {tag}",
            f"cafe {tag}",
            f"user_{tag}:conv:{self._values.random.randint(0, 99)}",
            f"{self._values.random.getrandbits(60)}{tag}",
            f"日本語/🙂/{tag}",
            f'it\'s "quoted" \\ %_ {tag}',
            f"{tag}-".ljust(255, "x"),
            f"{tag}-" + "é" * 120,
            *(self._values.uuid() for _ in range(4)),
        ]

    def _run_id(self, thread: Thread) -> str:
        candidates = [
            self._values.uuid(),
            f"run:{self._values.random.getrandbits(32)}",
            f"lauf-ü-{len(thread.messages)}",
        ]
        if self._kind in ("sqlite", "postgresql"):
            # MySQL gives these columns a collation that takes them for one.
            candidates += ["Run-A", "run-a", "rún-a"]
        run_id = self._values.some(candidates)
        return self._values.uuid() if run_id in {*thread.open_runs, *thread.completed_runs} else run_id

    # ---- operations ---------------------------------------------------------------------------------------------

    async def _append(self, thread_id: str, run_ids: list[str | None] | None = None) -> None:
        run_ids = [None] * self._values.random.randint(1, 4) if run_ids is None else run_ids
        await self._cp.append(thread_id, [self._values.message(run_id) for run_id in run_ids])
        self._threads[thread_id].add(run_ids)

    async def _append_to_a_run(self, thread_id: str) -> None:
        thread = self._threads[thread_id]
        if not thread.open_runs:
            return await self._claim(thread_id)
        # Now and then one that nobody has claimed, and two runs side by side.
        runs = [*thread.open_runs] * 3 + [f"unclaimed-{self._seed}", None]
        await self._append(thread_id, [self._values.some(runs) for _ in range(self._values.random.randint(1, 3))])

    async def _claim(self, thread_id: str, run_id: str | None = None) -> None:
        thread = self._threads[thread_id]
        run_id = run_id or self._run_id(thread)
        await self._cp.claim_run(thread_id, run_id)
        thread.open_runs.append(run_id)

    async def _complete(self, thread_id: str, run_id: str | None = None) -> None:
        thread = self._threads[thread_id]
        if not thread.open_runs:
            return
        run_id = run_id or self._values.some(thread.open_runs)
        await self._cp.mark_run_complete(thread_id, run_id)
        thread.open_runs.remove(run_id)
        thread.completed_runs.append(run_id)

    async def _fork(self, thread_id: str) -> None:
        forkable = [name for name, thread in self._threads.items() if thread.completed_runs]
        if forkable:
            source = self._values.some(forkable)
            run_id = self._values.some(self._threads[source].completed_runs)
            await self._fork_to(source, f"fork of {len(self._threads)}-{self._seed}", run_id)

    async def _fork_to(self, source_id: str, new_id: str, run_id: str) -> None:
        metadata = self._values.some([None, {}, self._values.json_object()])
        await self._cp.fork(source_id, new_id, after_run_id=run_id, metadata=metadata)
        source = self._threads[source_id]
        copied = source.up_to(run_id)
        self.forks[new_id] = max((seq for seq, _ in copied), default=0)
        if self._kind == "sqlite":
            copied = [(place, message[1]) for place, message in enumerate(copied, 1)]
        runs = source.completed_runs[: source.completed_runs.index(run_id) + 1]
        self._threads[new_id] = Thread(messages=copied, completed_runs=runs)

    async def _save_extra(self, thread_id: str) -> None:
        await self._cp.save_extra(thread_id, self._values.json_object())

    async def _ask(self, thread_id: str) -> None:
        run_id = self._values.some([None, self._values.uuid(), *self._threads[thread_id].open_runs])
        await self._cp.save_pending_request(thread_id, self._values.request(thread_id), run_id=run_id)

    async def _clear_request(self, thread_id: str) -> None:
        await self._cp.save_pending_request(thread_id, None, run_id=self._values.some([None, "ignored"]))

    async def _answer(self, thread_id: str) -> None:
        thread = self._threads[thread_id]
        run_id = self._values.some([None, None, *thread.open_runs, *thread.completed_runs])
        question_id = f"question:{self._values.random.randint(1, 4)}"
        await self._cp.save_hitl_answer(thread_id, question_id, self._values.answer(), run_id=run_id)
        thread.asked.append((question_id, run_id))

    async def _clear_answers(self, thread_id: str) -> None:
        if asked := self._threads[thread_id].asked:
            question_id, run_id = self._values.some(asked)
            await self._cp.clear_hitl_answers(thread_id, self._values.some([[question_id], None]), run_id=run_id)

    # ---- what must not be left to chance ------------------------------------------------------------------------

    def _new(self, name: str) -> str:
        thread_id = f"{name} {self._seed}"
        self._threads[thread_id] = Thread()
        return thread_id

    async def _write_threads_with_little_in_them(self) -> None:
        await self._cp.save_extra(self._new("extra alone"), {"only": 1.0})
        await self._cp.save_extra(self._new("empty extra"), {})
        await self._ask(self._new("pending alone"))
        cleared = self._new("pending and cleared")
        await self._ask(cleared)
        await self._clear_request(cleared)
        if can("claim_run"):
            await self._claim(self._new("claimed alone"))
            completed = self._new("completed alone")
            await self._claim(completed)
            await self._complete(completed)
        if can("save_hitl_answer"):
            await self._cp.save_hitl_answer(self._new("answer alone"), "question", None)

    async def _write_forks_that_are_easy_to_get_wrong(self) -> None:
        source = self._new("source")
        await self._append(source, [None, None])
        for run_id in ("first", "never completed", "second"):
            await self._claim(source, run_id)
        # Completed out of order and interleaved: the copies have gaps, the second run is in the first's past.
        await self._append(source, ["first", "never completed", "second", "first", "never completed", None])
        await self._complete(source, "second")
        await self._complete(source, "first")
        await self._fork_to(source, f"after the second {self._seed}", "second")
        await self._fork_to(source, f"after the first {self._seed}", "first")
        # Both go on after the fork was cut, one of them without runs.
        await self._append(source, [None, None])
        await self._claim(source, "third")
        await self._append(source, ["third", "third"])
        await self._complete(source, "third")
        fork = f"after the first {self._seed}"
        await self._append(fork, [None, None, None])
        await self._claim(fork, "fourth")
        await self._append(fork, ["fourth"])
        await self._complete(fork, "fourth")
        await self._fork_to(fork, f"fork of a fork {self._seed}", "fourth")
        await self._fork_to(fork, f"fork of a fork, cut earlier {self._seed}", "second")
        await self._fork_to(f"fork of a fork {self._seed}", f"fork of a fork of a fork {self._seed}", "first")
        empty = self._new("source without messages")
        await self._claim(empty, "empty")
        await self._complete(empty, "empty")
        await self._fork_to(empty, f"fork without messages {self._seed}", "empty")
        # These stand at the same seqs, and are no copies all the same.
        await self._append(empty, [None])
        await self._append(f"fork without messages {self._seed}", [None])

    async def write_spellings(self) -> None:
        """A run whose messages name it in three ways. To cubepi on MySQL they are one run, elsewhere three."""
        spellings = ["run-ü", "RUN-Ü", "run-u"]
        is_one = self._kind in ("mysql", "mariadb")
        for number in range(2):
            source = self._new(f"spellings {number}")
            await self._append(source, [None])
            await self._claim(source, spellings[number])
            await self._cp.append(source, [self._values.message(run_id) for run_id in (*spellings, "another")])
            self._threads[source].add([*(spellings[number] if is_one else run_id for run_id in spellings), "another"])
            await self._complete(source, spellings[number])
            await self._fork_to(source, f"fork of spellings {number}", spellings[number])

    async def write_twins(self, *, identical: bool) -> None:
        """A fork that goes on in the very words of its source, at once or after something of its own."""
        source, fork = self._new("source"), f"fork {self._seed}"
        await self._append(source, [None])
        await self._claim(source, "run")
        await self._append(source, ["run", "run"])
        await self._complete(source, "run")
        await self._fork_to(source, fork, "run")
        for thread_id in (source, fork):
            if not identical:
                await self._append(thread_id, [None])
            await self._cp.append(thread_id, [said("Go on")])
            self._threads[thread_id].add([None])
