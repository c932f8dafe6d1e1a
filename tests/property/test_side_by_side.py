"""Random sequences of every operation, on a database and on memory side by side: they never differ."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from backends import BACKENDS
from threadkeep import (
    CheckpointerError,
    ConfirmRequest,
    HitlRequest,
    MemoryCheckpointer,
    TextContent,
    UserMessage,
)

# Few names, so that operations meet; some differ only in case or accent.
NAMES = ["a", "A", "é"]
THREADS = st.sampled_from(NAMES)
RUNS = st.sampled_from(["r", "R"])
QUESTIONS = st.sampled_from(["q", "Q"])
MAYBE_RUNS = st.none() | RUNS
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
VERSIONS = st.integers(1, 4)
STATUSES = st.sampled_from(["active", "completed", "failed", "cancelled"])
CALLS = st.sampled_from(["c", "C"])
ARGS = st.sampled_from([{"a": 1}, {"a": 1.0}])
EXTRAS = st.dictionaries(st.sampled_from(["k", "K", "fork", "ключ"]), JSON, max_size=2)
MESSAGE_IDS = st.sampled_from(["m", "M", "n"])
MESSAGES = st.lists(
    st.builds(
        lambda text, run_id, metadata, message_id: UserMessage(
            content=[TextContent(text=text)], run_id=run_id, metadata=metadata, message_id=message_id
        ),
        st.text(max_size=10),
        MAYBE_RUNS,
        EXTRAS,
        st.none() | st.none() | MESSAGE_IDS,
    ),
    max_size=3,
)
TITLES = st.none() | st.text(max_size=6)
TOKENS = st.integers(0, 1_000)
PLACES = st.lists(st.integers(0, 9), min_size=1, max_size=4)

Step = Callable[[Any], Awaitable[Any]]


def shown_call(entry: Any) -> Any:
    """All of an entry but for times and owners."""
    return entry and (
        (entry.thread_id, entry.call_id, entry.tool_name, entry.args, entry.idempotency_key, entry.run_id),
        (entry.state, entry.attempt, entry.result, entry.error),
    )


async def settled(settling: Awaitable[Any]) -> Any:
    return shown_call(await settling)


async def moment(getting: Awaitable[Any]) -> Any:
    checkpoint = await getting
    return checkpoint and (checkpoint.seq, checkpoint.plan, checkpoint.state, checkpoint.messages)


async def issued(cp: Any, *call: Any) -> Any:
    answer = await cp.ledger.issue(*call)
    return answer.execute, shown_call(answer.entry)


def shown_thread(record: Any) -> Any:
    """All of a record but for times."""
    return record and (
        (record.parent_thread_id, record.forked_at_seq, record.last_seq, record.last_completion_seq, record.status),
        (record.title, record.metadata, record.model_id, record.provider_id, record.agent, record.system_prompt),
        record.deleted_at is not None,
    )


def shown_parts(parts: dict[str, list[Any]]) -> Any:
    return [
        (message_id, [(part.index, part.type, part.content, part.tool_state, part.output, part.error) for part in own])
        for message_id, own in sorted(parts.items())
    ]


def shown_messages(records: list[Any]) -> Any:
    """An id that was made here is not the one that was made there."""
    return [(record.seq, record.role, record.run_id, record.is_summary, record.message) for record in records]


async def made(cp: Any, thread_id: str, **options: Any) -> Any:
    return shown_thread(await cp.threads.create(thread_id, **options))


async def updated(cp: Any, thread_id: str, **options: Any) -> Any:
    return shown_thread(await cp.threads.update(thread_id, **options))


async def with_part(cp: Any, thread_id: str, message_id: str, content: Any) -> int:
    part = await cp.parts.append(thread_id, message_id, "text", content)
    return int(part.index)


async def with_status(cp: Any, thread_id: str, message_id: str, **status: Any) -> Any:
    part = await cp.parts.update_status(thread_id, message_id, 0, **status)
    return shown_parts({message_id: [part]})


async def compacted(cp: Any, thread_id: str, places: list[int], summary_id: str | None) -> Any:
    """A summary in the place of some of what is in the window."""
    items = await cp.context.items(thread_id)
    remove = [items[place % len(items)] for place in places] if items else ["nothing"]
    summary = UserMessage(content=[TextContent(text=f"of {places}")])
    item = await cp.context.swap(thread_id, remove, summary, summary_id=summary_id)
    return item.position


async def read_window(cp: Any, thread_id: str) -> Any:
    items = await cp.context.items(thread_id)
    summaries = [item for item in items if item.is_summary]
    return (
        [(item.position, item.is_summary) for item in items],
        await cp.context.load(thread_id),
        [shown_messages(await cp.context.expand(thread_id, item)) for item in summaries],
        [shown_messages(await cp.context.expand(thread_id, item, deep=True)) for item in summaries],
    )


WRITES: st.SearchStrategy[tuple[str, Step]] = st.one_of(
    st.builds(lambda t, m: ("append", lambda cp: cp.append(t, m)), THREADS, MESSAGES),
    st.builds(lambda t, e: ("save_extra", lambda cp: cp.save_extra(t, e)), THREADS, EXTRAS),
    st.builds(lambda t, r: ("claim_run", lambda cp: cp.claim_run(t, r)), THREADS, RUNS),
    st.builds(lambda t, r: ("mark_run_complete", lambda cp: cp.mark_run_complete(t, r)), THREADS, RUNS),
    st.builds(
        lambda s, n, r, m: ("fork", lambda cp: cp.fork(s, n, after_run_id=r, metadata=m)),
        THREADS,
        THREADS,
        RUNS,
        st.none() | EXTRAS,
    ),
    st.builds(
        lambda t, q, r, p: (
            "save_pending_request",
            lambda cp: cp.save_pending_request(
                t, HitlRequest(question_id=q, payload=ConfirmRequest(prompt=p), created_at=0.5), run_id=r
            ),
        ),
        THREADS,
        QUESTIONS,
        MAYBE_RUNS,
        st.text(max_size=5),
    ),
    st.builds(lambda t: ("save_pending_request None", lambda cp: cp.save_pending_request(t, None)), THREADS),
    st.builds(
        lambda t, q, r: (
            "clear_pending_request_if_matches",
            lambda cp: cp.clear_pending_request_if_matches(t, question_id=q, run_id=r),
        ),
        THREADS,
        QUESTIONS,
        MAYBE_RUNS,
    ),
    st.builds(
        lambda t, q, a, r: ("save_hitl_answer", lambda cp: cp.save_hitl_answer(t, q, a, run_id=r)),
        THREADS,
        QUESTIONS,
        JSON,
        MAYBE_RUNS,
    ),
    st.builds(
        lambda t, q, r: ("clear_hitl_answers", lambda cp: cp.clear_hitl_answers(t, q, run_id=r)),
        THREADS,
        st.none() | st.lists(QUESTIONS, max_size=2),
        MAYBE_RUNS,
    ),
    st.builds(lambda t: ("delete", lambda cp: cp.threads.delete(t)), THREADS),
    st.builds(
        lambda t, p, b, s: (
            "checkpoint",
            lambda cp: cp.checkpoints.save(t, plan=p, budget_spent_usd=b, state=s),
        ),
        THREADS,
        JSON,
        st.integers(0, 9) | st.floats(0, 9),
        JSON,
    ),
    st.builds(lambda t, v: ("delete checkpoint", lambda cp: cp.checkpoints.delete(t, v)), THREADS, VERSIONS),
    st.builds(
        lambda t, p, ti, m: ("create", lambda cp: made(cp, t, parent_thread_id=p, title=ti, metadata=m, model_id="m")),
        THREADS,
        st.none() | THREADS,
        TITLES,
        EXTRAS,
    ),
    st.builds(lambda t, ti, m: ("update", lambda cp: updated(cp, t, title=ti, metadata=m)), THREADS, TITLES, EXTRAS),
    st.builds(lambda t, p: ("update", lambda cp: updated(cp, t, system_prompt=p)), THREADS, st.text(max_size=4)),
    st.builds(lambda t: ("soft_delete", lambda cp: cp.threads.soft_delete(t)), THREADS),
    st.builds(lambda t: ("restore", lambda cp: cp.threads.restore(t)), THREADS),
    st.builds(lambda t, m, c: ("part", lambda cp: with_part(cp, t, m, c)), THREADS, MESSAGE_IDS, JSON),
    st.builds(
        lambda t, m, o: ("part's status", lambda cp: with_status(cp, t, m, tool_state="done", output=o)),
        THREADS,
        MESSAGE_IDS,
        JSON,
    ),
    st.builds(lambda t, m: ("discard", lambda cp: cp.parts.discard(t, m)), THREADS, MESSAGE_IDS),
    st.builds(
        lambda t, m, n, c, r: (
            "usage",
            lambda cp: cp.usage.record(t, m, input_tokens=n, output_tokens=n, cost=c, run_id=r),
        ),
        THREADS,
        MESSAGE_IDS,
        TOKENS,
        st.floats(0, 2),
        MAYBE_RUNS,
    ),
    st.builds(
        lambda t, p, i: ("swap", lambda cp: compacted(cp, t, p, i)),
        THREADS,
        PLACES,
        st.none() | st.none() | MESSAGE_IDS,
    ),
    st.builds(lambda t, s: ("set_status", lambda cp: cp.threads.set_status(t, s)), THREADS, STATUSES),
    st.builds(lambda t, c, r: ("complete", lambda cp: settled(cp.ledger.complete(t, c, r))), THREADS, CALLS, JSON),
    st.builds(
        lambda t, c, e: ("fail", lambda cp: settled(cp.ledger.fail(t, c, e))), THREADS, CALLS, st.text(max_size=5)
    ),
)


async def page(cp: Any, thread_id: str, **options: Any) -> Any:
    records = await cp.messages.list(thread_id, with_parts=True, **options)
    return shown_messages(records), [shown_parts({"": record.parts}) for record in records]


async def found(cp: Any, text: str) -> Any:
    return [(hit.thread_id, hit.title, hit.seq) for hit in await cp.threads.search(text)]


async def listed(cp: Any, **options: Any) -> Any:
    return [record.thread_id for record in await cp.threads.list(**options)]


async def one_message(cp: Any, thread_id: str, message_id: str) -> Any:
    return shown_messages([await cp.messages.get(thread_id, message_id)])


READS: st.SearchStrategy[tuple[str, Step]] = st.one_of(
    st.builds(
        lambda t, s, b, n, r: ("page", lambda cp: page(cp, t, since=s, before=b, limit=n, reverse=r)),
        THREADS,
        st.none() | MESSAGE_IDS | st.integers(0, 5),
        st.none() | MESSAGE_IDS | st.integers(0, 5),
        st.none() | st.integers(1, 3),
        st.booleans(),
    ),
    st.builds(lambda t, m: ("message", lambda cp: one_message(cp, t, m)), THREADS, MESSAGE_IDS),
    st.builds(lambda c: ("search", lambda cp: found(cp, c)), st.sampled_from(["a", "0", "\u0130", "%", "\\"])),
    st.builds(lambda m: ("list", lambda cp: listed(cp, metadata=m, include_deleted=True)), EXTRAS),
    st.builds(lambda t: ("totals", lambda cp: cp.usage.by_run(t)), THREADS),
    st.builds(lambda t, r: ("snapshot", lambda cp: cp.snapshot(t, after_run_id=r)), THREADS, RUNS),
    st.builds(lambda t, v: ("checkpoint", lambda cp: moment(cp.checkpoints.get(t, v))), THREADS, VERSIONS),
    st.builds(lambda t: ("load_pending_run_id", lambda cp: cp.load_pending_run_id(t)), THREADS),
    st.builds(
        lambda t, q, r: ("load_hitl_answer", lambda cp: cp.load_hitl_answer(t, q, run_id=r)),
        THREADS,
        QUESTIONS,
        MAYBE_RUNS,
    ),
    st.builds(
        lambda t, q, r: ("has_hitl_answer", lambda cp: cp.has_hitl_answer(t, q, run_id=r)),
        THREADS,
        QUESTIONS,
        MAYBE_RUNS,
    ),
)


async def outcome(cp: Any, step: Step) -> Any:
    """What it returned, or which error with which ids."""
    try:
        return await step(cp)
    except CheckpointerError as error:
        return type(error), error.args


async def picture(cp: Any) -> Any:
    """All that can be seen of a store, but for times."""
    shown: list[Any] = []
    records = {record.thread_id: record for record in await cp.threads.list(include_deleted=True)}
    shown.append(await listed(cp))
    for thread_id in NAMES:
        record = records.get(thread_id)
        shown.append(
            (
                await cp.load(thread_id),
                shown_thread(record),
                sorted((run.run_id, run.completion_seq or 0) for run in await cp.runs.list(thread_id)),
                await cp.load_pending(thread_id),
                await read_window(cp, thread_id),
                shown_parts(await cp.parts.of(thread_id, ["m", "M", "n"])),
                await cp.usage.total(thread_id),
                await cp.usage.by_model(thread_id),
                [shown_call(entry) for entry in await cp.ledger.list(thread_id)],
                [
                    (kept.version, kept.seq, kept.plan, kept.budget_spent_usd, kept.state)
                    for kept in await cp.checkpoints.list(thread_id)
                ],
            )
        )
    shown.append(
        [
            (
                await cp.has_hitl_answer("a", question_id, run_id=run_id),
                await cp.load_hitl_answer("a", question_id, run_id=run_id),
            )
            for question_id in ("q", "Q")
            for run_id in (None, "r", "R")
        ]
    )
    return shown


class SideBySide(RuleBasedStateMachine):
    """Does everything twice. `database` and `loop` are set by the test."""

    database: Any
    loop: asyncio.AbstractEventLoop

    def __init__(self) -> None:
        super().__init__()
        self.memory = MemoryCheckpointer(searchable=True)
        self.loop.run_until_complete(self._empty())

    async def _empty(self) -> None:
        for record in await self.database.threads.list(include_deleted=True):
            await self.database.threads.delete(record.thread_id)

    def both(self, step: Step) -> None:
        expected = self.loop.run_until_complete(outcome(self.memory, step))
        assert self.loop.run_until_complete(outcome(self.database, step)) == expected

    @rule(write=WRITES)
    def write(self, write: tuple[str, Step]) -> None:
        self.both(write[1])

    @rule(thread_id=THREADS, run_id=RUNS, messages=MESSAGES)
    def whole_run(self, thread_id: str, run_id: str, messages: list[UserMessage]) -> None:
        """Claims, completions and appends that only meet by chance would leave little to fork."""
        mine = [message.model_copy(update={"run_id": run_id}) for message in messages]
        self.both(lambda cp: cp.claim_run(thread_id, run_id))
        self.both(lambda cp: cp.append(thread_id, mine))
        self.both(lambda cp: cp.mark_run_complete(thread_id, run_id))

    @rule(source=THREADS, new=THREADS, run_id=RUNS, metadata=st.none() | EXTRAS)
    def fork(self, source: str, new: str, run_id: str, metadata: dict[str, Any] | None) -> None:
        self.both(lambda cp: cp.fork(source, new, after_run_id=run_id, metadata=metadata))

    @rule(thread_id=THREADS, places=PLACES)
    def compact(self, thread_id: str, places: list[int]) -> None:
        self.both(lambda cp: compacted(cp, thread_id, places, None))

    @rule(question_id=QUESTIONS, answer=JSON, run_id=MAYBE_RUNS)
    def answer(self, question_id: str, answer: Any, run_id: str | None) -> None:
        self.both(lambda cp: cp.save_hitl_answer("a", question_id, answer, run_id=run_id))

    @rule(question_ids=st.none() | st.lists(QUESTIONS, max_size=2), run_id=MAYBE_RUNS)
    def forget_answers(self, question_ids: list[str] | None, run_id: str | None) -> None:
        self.both(lambda cp: cp.clear_hitl_answers("a", question_ids, run_id=run_id))

    @rule(thread_id=THREADS)
    def delete(self, thread_id: str) -> None:
        self.both(lambda cp: cp.threads.delete(thread_id))

    @rule(thread_id=THREADS, call_id=CALLS, tool_name=st.sampled_from(["t", "T"]), args=ARGS)
    def issue(self, thread_id: str, call_id: str, tool_name: str, args: dict[str, Any]) -> None:
        self.both(lambda cp: issued(cp, thread_id, call_id, tool_name, args))

    @rule(thread_id=THREADS)
    def resume(self, thread_id: str) -> None:
        async def look(cp: Any) -> Any:
            report = await cp.resume(thread_id)
            return report and (
                report.status,
                report.checkpoint and report.checkpoint.version,
                report.pending_request,
                report.pending_run_id,
                sorted((run.run_id, run.state) for run in report.open_runs),
                [shown_call(entry) for entry in report.calls_in_doubt],
                [(draft.message_id, len(draft.parts)) for draft in report.drafts],
            )

        self.both(look)

    @rule(thread_id=THREADS, run_id=RUNS, messages=MESSAGES, exclusive=st.booleans())
    def leased_run(self, thread_id: str, run_id: str, messages: list[UserMessage], exclusive: bool) -> None:
        async def work(cp: Any) -> Any:
            async with cp.runs.lease(thread_id, run_id, ttl=60, exclusive=exclusive) as lease:
                await lease.append(thread_id, messages)
                await lease.mark_run_complete(thread_id, run_id)

        self.both(work)

    @rule(read=READS)
    def read(self, read: tuple[str, Step]) -> None:
        self.both(read[1])

    @rule(writes=st.lists(WRITES, min_size=1, max_size=4), ends_well=st.booleans())
    def in_one_transaction(self, writes: list[tuple[str, Step]], ends_well: bool) -> None:
        async def together(cp: Any) -> Any:
            outcomes = []
            try:
                async with cp.transaction() as tx:
                    for _, step in writes:
                        outcomes.append(await outcome(tx, step))
                    if not ends_well:
                        raise ZeroDivisionError
            except ZeroDivisionError:
                pass
            return outcomes

        self.both(together)

    @invariant()
    def they_look_alike(self) -> None:
        expected = self.loop.run_until_complete(picture(self.memory))
        assert self.loop.run_until_complete(picture(self.database)) == expected


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    with asyncio.Runner() as runner:
        yield runner.get_loop()


# Memory is the other side of each comparison.
@pytest.mark.parametrize("name", [name for name in BACKENDS if name != "memory" and not name.endswith("of-host")])
def test_a_database_never_differs_from_memory(name: str, tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    async def enter() -> tuple[AsyncExitStack, Any]:
        stack = AsyncExitStack()
        backend = await stack.enter_async_context(BACKENDS[name](tmp_path))
        return stack, await stack.enter_async_context(backend.opened(searchable=True))

    stack, database = loop.run_until_complete(enter())
    try:
        machine = type("Machine", (SideBySide,), {"database": database, "loop": loop})
        run_state_machine_as_test(
            machine, settings=settings(max_examples=settings().max_examples // 8, stateful_step_count=25)
        )
    finally:
        loop.run_until_complete(stack.aclose())
