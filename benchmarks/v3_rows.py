"""Threads and messages as cubepi 0.7.0 wrote them: made up, and the same ones on every run."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from itertools import cycle, islice
from typing import Any, NamedTuple

MESSAGES_PER_THREAD = 100
_THREADS_AT_ONCE = 20
_FIRST_DAY = datetime(2026, 1, 1, tzinfo=UTC)
_WORDS = [
    "agent",
    "bridge",
    "calendar",
    "door",
    "evening",
    "ferry",
    "garden",
    "harbour",
    "lamp",
    "map",
    "north",
    "river",
]


class Thread(NamedTuple):
    """A row of threads. JSON is text here: what a server makes of it is the server's."""

    thread_id: str
    extra: str
    pending_request: str | None
    run_id: str | None
    created_at: datetime


class Message(NamedTuple):
    """A row of messages."""

    thread_id: str
    seq: int
    role: str
    metadata: str
    document: dict[str, Any]
    created_at: datetime


def thread_id_of(number: int) -> str:
    """Ids in no order, as those of real threads: rows of one thread are far from those of the next."""
    return blake2b(f"thread {number}".encode(), digest_size=16).hexdigest()


def batches(messages: int) -> Iterator[tuple[list[Thread], list[Message]]]:
    """So many messages, a hundred to a thread. The threads of a batch grow side by side, as in a service."""
    texts = [_text(number) for number in range(997)]
    threads = range(max(1, messages // MESSAGES_PER_THREAD))
    for first in threads[::_THREADS_AT_ONCE]:
        numbers = threads[first : first + _THREADS_AT_ONCE]
        yield (
            [_thread(number) for number in numbers],
            [_message(number, seq, texts) for seq in range(1, MESSAGES_PER_THREAD + 1) for number in numbers],
        )


def _thread(number: int) -> Thread:
    thread_id = thread_id_of(number)
    extra = {"plan": {"step": number, "done": [True, None]}, "title": f"Plan {number}"} if number % 2 else {}
    waits = number % 50 == 7
    return Thread(
        thread_id,
        json.dumps(extra),
        json.dumps(_request(thread_id)) if waits else None,
        f"run-{number}" if waits else None,
        _FIRST_DAY + timedelta(minutes=number),
    )


def _message(thread: int, seq: int, texts: list[str]) -> Message:
    at = _FIRST_DAY + timedelta(minutes=thread, seconds=10 * seq)
    metadata = {"shown": True, "turn": seq} if seq % 5 == 0 else {}
    role = "user" if seq % 2 else "assistant"
    document: dict[str, Any] = {"role": role, "content": [{"type": "text", "text": texts[(thread * 31 + seq) % 997]}]}
    if role == "assistant":
        document |= {
            "stop_reason": "stop",
            "error_message": None,
            "usage": {"input_tokens": 5 * seq, "output_tokens": 7, "cache_read_tokens": 0, "cache_write_tokens": 0},
            "provider_id": "p",
            "model_id": "m",
            "response_id": None,
        }
    document |= {"timestamp": at.timestamp(), "metadata": metadata}
    return Message(thread_id_of(thread), seq, role, json.dumps(metadata), document, at)


def _request(thread_id: str) -> dict[str, Any]:
    return {
        "question_id": thread_id[::-1],
        "thread_id": thread_id,
        "payload": {"kind": "confirm", "prompt": "Book it?", "details": {"price": 120}},
        "created_at": _FIRST_DAY.timestamp(),
        "timeout_seconds": None,
    }


def _text(number: int) -> str:
    """Some 870 characters: with what surrounds it, a message takes about 1 KB."""
    return " ".join(islice(cycle([*_WORDS[number % 12 :], str(number)]), 290))[:870]
