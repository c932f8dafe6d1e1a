"""What MemoryCheckpointer keeps: threads and files in dictionaries, as committed or as a transaction sees them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Generic, NamedTuple, TypeVar

from threadkeep import rules, windows
from threadkeep.errors import CheckpointerError, DuplicateIdError
from threadkeep.message_ids import made_id, new_message_id
from threadkeep.records import (
    MessageRow,
    PlacedItem,
    RunRecord,
    SearchHit,
    StoredCall,
    StoredCheckpoint,
    StoredEntry,
    StoredFile,
    StoredLease,
    StoredMessage,
    StoredPart,
    StoredPending,
    UsageRow,
)

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True)
class Lease:
    """A lease on a run of a thread."""

    run_id: str
    token: int
    owner: str
    is_exclusive: bool
    expires_at: datetime

    def stored(self) -> StoredLease:
        return StoredLease(self.run_id, self.token, self.owner, self.is_exclusive, self.expires_at <= rules.utc_now())


class Written(NamedTuple):
    """A message of the log, and when it was written."""

    row: MessageRow
    created_at: datetime
    message_id: str


class Summary(NamedTuple):
    """A summary: where it stands, and for what."""

    row: MessageRow
    created_at: datetime
    message_id: str
    position: int
    replaces: windows.Replaced


@dataclass
class Thread:
    """One thread. Its containers are copied before a transaction changes them."""

    thread_id: str
    created_at: datetime
    updated_at: datetime
    parent_thread_id: str | None = None
    forked_at_seq: int | None = None
    extra: str = "{}"
    last_completion_seq: int = 0
    messages: list[Written] = field(default_factory=list)
    seqs: dict[str, int] = field(default_factory=dict)
    """Of the messages, by their ids."""
    runs: dict[str, RunRecord] = field(default_factory=dict)
    pending: tuple[str | None, StoredPending] | None = None
    answers: dict[tuple[str, str], str] = field(default_factory=dict)
    status: str = "active"
    calls: dict[str, StoredCall] = field(default_factory=dict)
    checkpoints: dict[int, StoredCheckpoint] = field(default_factory=dict)
    last_version: int = 0
    leases: dict[str, Lease] = field(default_factory=dict)
    last_token: int = 0
    title: str | None = None
    metadata: str | None = None
    model_id: str | None = None
    provider_id: str | None = None
    agent: str | None = None
    system_prompt: str | None = None
    labels: frozenset[str] = frozenset()
    deleted_at: datetime | None = None
    parts: dict[str, list[StoredPart]] = field(default_factory=dict)
    usage: dict[str, UsageRow] = field(default_factory=dict)
    compacted_seq: int = 0
    window: dict[int, int | None] = field(default_factory=dict)
    """Up to that seq: position to the number of the summary that stands there, or None for a message that stayed."""
    summaries: dict[int, Summary] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    """Of the summaries, by their ids."""

    def copy(self) -> Thread:
        return replace(
            self,
            messages=list(self.messages),
            seqs=dict(self.seqs),
            runs=dict(self.runs),
            answers=dict(self.answers),
            calls=dict(self.calls),
            checkpoints=dict(self.checkpoints),
            leases=dict(self.leases),
            parts={message_id: list(parts) for message_id, parts in self.parts.items()},
            usage=dict(self.usage),
            window=dict(self.window),
            summaries=dict(self.summaries),
            numbers=dict(self.numbers),
        )

    @property
    def last_seq(self) -> int:
        return len(self.messages)

    # ---- the log --------------------------------------------------------------------------------------------

    def append(self, rows: Iterable[MessageRow], stem: str) -> int:
        """Add the rows; return the last seq."""
        now = rules.utc_now()
        for seq, row in enumerate(rows, self.last_seq + 1):
            message_id = row.message_id or made_id(stem, seq)
            self.messages.append(Written(row, now, message_id))
            self.seqs[message_id] = seq
        return self.last_seq

    def has(self, message_id: str) -> bool:
        """Whether a message or a summary is called so."""
        return message_id in self.seqs or message_id in self.numbers

    def refuse_taken(self, rows: Iterable[MessageRow]) -> None:
        """Raise DuplicateIdError if an id that the host gave is taken."""
        for row in rows:
            if row.message_id is not None and self.has(row.message_id):
                raise DuplicateIdError(self.thread_id, row.message_id)

    def stored(self, seqs: Iterable[int]) -> list[StoredMessage]:
        return [self._message(seq) for seq in seqs]

    def up_to(self, seq: int) -> list[StoredMessage]:
        """The first so many messages."""
        return self.stored(range(1, seq + 1))

    def entry(self, seq: int) -> StoredEntry:
        row, created_at, message_id = self.messages[seq - 1]
        return StoredEntry(self._message(seq), message_id, row.role, row.run_id, created_at)

    def summary_entry(self, number: int) -> StoredEntry:
        row, created_at, message_id, *_ = self.summaries[number]
        return StoredEntry(self._summary(number), message_id, row.role, row.run_id, created_at)

    def _message(self, seq: int) -> StoredMessage:
        row = self.messages[seq - 1].row
        return StoredMessage(seq, row.format, row.payload)

    def _summary(self, number: int) -> StoredMessage:
        row = self.summaries[number].row
        return StoredMessage(number, row.format, row.payload, is_summary=True)

    def drafts(self) -> list[StoredPart]:
        """Parts whose message is not there."""
        waiting = sorted(message_id for message_id in self.parts if not self.has(message_id))
        return [part for message_id in waiting for part in self.parts[message_id]]

    def hits(self, folded: str) -> list[SearchHit]:
        """Where this text stands."""
        title = rules.decoded_title(self.thread_id, self.title)
        found = [
            SearchHit(self.thread_id, title, message_id, seq)
            for seq, (row, _, message_id) in enumerate(self.messages, 1)
            if row.search_text is not None and folded in row.search_text
        ]
        if folded in (rules.folded_title(self.thread_id, self.title) or ""):
            found.insert(0, SearchHit(self.thread_id, title, None, None))
        return found

    # ---- the context window ---------------------------------------------------------------------------------

    def items(self) -> list[PlacedItem]:
        """What is in the window, in order."""
        items = []
        for position, number in sorted(self.window.items()):
            item = self.messages[position - 1] if number is None else self.summaries[number]
            items.append(PlacedItem(position, item.message_id, number))
        # What comes after the compacted part is in the window by itself.
        for seq, written in enumerate(self.messages[self.compacted_seq :], self.compacted_seq + 1):
            items.append(PlacedItem(seq, written.message_id, None))
        return items

    def in_window(self) -> list[StoredEntry]:
        """The messages and summaries in the window."""
        return [
            self.entry(position) if number is None else self.summary_entry(number)
            for position, _, number in self.items()
        ]

    def compact(self, row: MessageRow, change: windows.Compaction) -> PlacedItem:
        """Put the summary where it belongs."""
        number = max(self.summaries, default=0) + 1
        message_id = row.message_id or new_message_id()
        self.summaries[number] = Summary(row, rules.utc_now(), message_id, change.position, change.replaces)
        self.numbers[message_id] = number
        for position in change.removed:
            del self.window[position]
        self.window |= {**dict.fromkeys(change.stayed), change.position: number}
        self.compacted_seq = change.compacted_seq
        return PlacedItem(change.position, message_id, number)

    def under(self, number: int, deep: bool) -> list[StoredEntry]:
        """What the summary stands for: directly, or in the end."""
        replaces: Sequence[list[int] | int] = self.summaries[number].replaces
        if deep:
            replaces = windows.messages_under(number, {n: summary.replaces for n, summary in self.summaries.items()})
        entries: list[StoredEntry] = []
        for replaced in replaces:
            if isinstance(replaced, int):
                entries.append(self.summary_entry(replaced))
            else:
                entries += (self.entry(seq) for seq in range(replaced[0], replaced[1] + 1))
        return entries

    # ---- forks ----------------------------------------------------------------------------------------------

    def slice_after(self, after_run_id: str) -> tuple[int, list[int]]:
        """The cutoff, and the seqs of what a fork copies."""
        run = self.runs.get(after_run_id)
        cutoff = rules.require_cutoff(self.thread_id, after_run_id, run.completion_seq if run else None)
        completed = {run.run_id for run in self.runs.values() if run.completion_seq and run.completion_seq <= cutoff}
        return cutoff, [
            seq for seq, (row, *_) in enumerate(self.messages, 1) if row.run_id is None or row.run_id in completed
        ]

    def fork(self, thread_id: str, cutoff: int, copied: Sequence[int], extra: str) -> Thread:
        """A thread that has the copied messages, and what belongs to them."""
        # As long as nothing is left out, a message keeps its place.
        whole = next((place for place, seq in enumerate(copied) if seq != place + 1), len(copied))
        is_all = len(copied) == self.last_seq
        checkpoints = {
            version: checkpoint for version, checkpoint in self.checkpoints.items() if is_all or checkpoint.seq <= whole
        }
        messages = [self.messages[seq - 1] for seq in copied]
        seqs = {written.message_id: place for place, written in enumerate(messages, 1)}
        compacted_seq, window, placed = windows.fork(
            self.window,
            {
                number: windows.Summarized(summary.position, summary.replaces)
                for number, summary in self.summaries.items()
            },
            copied,
            sorted({*range(1, self.last_seq + 1)}.difference(copied)),
        )
        summaries = {
            number: self.summaries[number]._replace(position=position, replaces=replaces)
            for number, (position, replaces) in placed.items()
        }
        numbers = {summary.message_id: number for number, summary in summaries.items()}
        now = rules.utc_now()
        return Thread(
            thread_id=thread_id,
            created_at=now,
            updated_at=now,
            parent_thread_id=self.thread_id,
            forked_at_seq=copied[-1] if copied else 0,
            extra=extra,
            last_completion_seq=cutoff,
            messages=messages,
            seqs=seqs,
            runs={
                run_id: run for run_id, run in self.runs.items() if run.completion_seq and run.completion_seq <= cutoff
            },
            checkpoints=checkpoints,
            last_version=max(checkpoints, default=0),
            title=self.title,
            metadata=self.metadata,
            model_id=self.model_id,
            provider_id=self.provider_id,
            agent=self.agent,
            system_prompt=self.system_prompt,
            labels=self.labels,
            parts={
                message_id: list(parts)
                for message_id, parts in self.parts.items()
                if message_id in seqs or message_id in numbers
            },
            compacted_seq=compacted_seq,
            window=window,
            summaries=summaries,
            numbers=numbers,
        )


class Overlay(Generic[K, V]):
    """A dictionary, as committed or as a transaction sees it: what is committed shines through until it is written."""

    def __init__(self, committed: Overlay[K, V] | None = None) -> None:
        self._committed = committed
        self._own: dict[K, V | None] = {}

    def get(self, key: K) -> V | None:
        """The value to read."""
        if key in self._own or self._committed is None:
            return self._own.get(key)
        return self._committed.get(key)

    def is_own(self, key: K) -> bool:
        """Whether a change to the value itself is nobody else's."""
        return self._committed is None or key in self._own

    def put(self, key: K, value: V) -> None:
        """Add a value, or replace it."""
        self._own[key] = value

    def delete(self, key: K) -> None:
        """Remove a value; in a transaction, a None hides the committed one until the commit removes it."""
        if self._committed is None:
            del self._own[key]
        else:
            self._own[key] = None

    def values(self) -> Iterator[V]:
        """All there are."""
        for key in dict.fromkeys([*(self._committed._own if self._committed else ()), *self._own]):
            value = self.get(key)
            if value is not None:
                yield value

    def commit(self) -> None:
        """Make what this transaction wrote the committed values."""
        assert self._committed is not None
        for key, value in self._own.items():
            if value is None:
                self._committed._own.pop(key, None)
            else:
                self._committed._own[key] = value


class Threads:
    """The threads, and the files beside them, as committed or as a transaction sees them."""

    def __init__(self, committed: Threads | None = None) -> None:
        self._committed = committed
        self._threads: Overlay[str, Thread] = Overlay(committed._threads if committed else None)
        self._files: Overlay[tuple[str, str], StoredFile] = Overlay(committed._files if committed else None)
        self.over = False

    @property
    def is_transaction(self) -> bool:
        """Whether these are not the committed ones."""
        return self._committed is not None

    @property
    def files(self) -> Overlay[tuple[str, str], StoredFile]:
        """By content and path."""
        self._refuse_when_over()
        return self._files

    def get(self, thread_id: str) -> Thread | None:
        """The thread to read."""
        self._refuse_when_over()
        return self._threads.get(thread_id)

    def all(self) -> Iterator[Thread]:
        """All threads there are."""
        self._refuse_when_over()
        return self._threads.values()

    def to_write(self, thread_id: str) -> Thread | None:
        """The thread that a write has to look at before it changes anything. Raises ThreadDeletedError."""
        thread = self.get(thread_id)
        if thread is not None:
            rules.refuse_deleted(thread_id, thread.deleted_at)
        return thread

    def touch(self, thread: Thread) -> Thread:
        """This thread, to be changed."""
        if not self._threads.is_own(thread.thread_id):
            thread = thread.copy()
            self.put(thread)
        thread.updated_at = rules.utc_now()
        return thread

    def touch_or_create(self, thread_id: str) -> Thread:
        """The thread to be changed, new if there was none. Raises ThreadDeletedError."""
        thread = self.to_write(thread_id)
        if thread is not None:
            return self.touch(thread)
        now = rules.utc_now()
        thread = Thread(thread_id, created_at=now, updated_at=now)
        self.put(thread)
        return thread

    def put(self, thread: Thread) -> None:
        """Add a thread."""
        self._threads.put(thread.thread_id, thread)

    def delete(self, thread_id: str) -> None:
        """Remove a thread."""
        self._threads.delete(thread_id)

    def commit(self) -> None:
        """Make what this transaction wrote the committed threads and files."""
        self._threads.commit()
        self._files.commit()

    def _refuse_when_over(self) -> None:
        if self.over:
            raise CheckpointerError("the transaction is over")
