"""A worker that holds its checkpointer open and tries every kind of write: to threads of its own, and to new ones."""

from collections.abc import Awaitable, Callable
from typing import Any

from with_cubepi.old_library import can, module

Operation = Callable[[Any, str, str], Awaitable[Any]]
"""Takes a checkpointer, a prepared thread, and the id of a thread that does not exist."""


def said(text: str, run_id: str | None = None) -> Any:
    of = module("providers.base")
    runs = {"run_id": run_id} if "run_id" in of.UserMessage.model_fields else {}
    return of.UserMessage(content=[of.TextContent(text=text)], metadata={"k": [1, "a"]}, **runs)


def asked(thread_id: str) -> Any:
    of = module("hitl.types")
    payload = of.ConfirmRequest(prompt="Go on?", details={"a": 1})
    return of.HitlRequest(question_id="question", thread_id=thread_id, payload=payload, created_at=1.7e9)


async def prepare(cp: Any, thread_id: str) -> None:
    """A thread with something of everything in it."""
    await cp.append(thread_id, [said("one"), said("two")])
    await cp.save_extra(thread_id, {"a": {"b": 1}})
    await cp.save_pending_request(thread_id, asked(thread_id), run_id="open")
    if can("claim_run"):
        await cp.claim_run(thread_id, "done")
        await cp.append(thread_id, [said("three", "done")])
        await cp.mark_run_complete(thread_id, "done")
        await cp.claim_run(thread_id, "open")
        await cp.append(thread_id, [said("four", "open")])
    if can("save_hitl_answer"):
        await cp.save_hitl_answer(thread_id, "question", {"a": 1})
        await cp.save_hitl_answer(thread_id, "question", [1.0], run_id="open")


def operations() -> dict[str, Operation]:
    """Every write that this release has, to a prepared thread or a new one. In this order each changes something."""
    writes: dict[str, Operation] = {}
    if can("clear_pending_request_if_matches"):
        writes |= {
            "clear_pending_request_if_matches": lambda cp, thread, new: cp.clear_pending_request_if_matches(
                thread, question_id="question", run_id="open"
            ),
        }
    writes |= {
        "append": lambda cp, thread, new: cp.append(thread, [said("late")]),
        "append several": lambda cp, thread, new: cp.append(thread, [said("late"), said("later")]),
        "append to a new thread": lambda cp, thread, new: cp.append(new, [said("late")]),
        "save_extra": lambda cp, thread, new: cp.save_extra(thread, {"late": True}),
        "save_extra of nothing": lambda cp, thread, new: cp.save_extra(thread, {}),
        "save_extra to a new thread": lambda cp, thread, new: cp.save_extra(new, {"late": True}),
        "save_pending_request": lambda cp, thread, new: cp.save_pending_request(thread, asked("late"), run_id="late"),
        "save_pending_request to a new thread": lambda cp, thread, new: cp.save_pending_request(new, asked("late")),
        "clear the pending request": lambda cp, thread, new: cp.save_pending_request(thread, None),
        "clear the pending request of a new thread": lambda cp, thread, new: cp.save_pending_request(new, None),
    }
    if can("claim_run"):
        writes |= {
            "claim_run": lambda cp, thread, new: cp.claim_run(thread, "late"),
            "claim_run on a new thread": lambda cp, thread, new: cp.claim_run(new, "late"),
            "append to an open run": lambda cp, thread, new: cp.append(thread, [said("late", "open")]),
            "mark_run_complete": lambda cp, thread, new: cp.mark_run_complete(thread, "open"),
            "fork": lambda cp, thread, new: cp.fork(thread, new, after_run_id="done", metadata={"late": 1}),
        }
    if can("save_hitl_answer"):
        writes |= {
            "save_hitl_answer": lambda cp, thread, new: cp.save_hitl_answer(thread, "late", 1),
            "save_hitl_answer again": lambda cp, thread, new: cp.save_hitl_answer(thread, "question", 1, run_id="open"),
            "save_hitl_answer to a new thread": lambda cp, thread, new: cp.save_hitl_answer(new, "late", None),
            "clear_hitl_answers": lambda cp, thread, new: cp.clear_hitl_answers(thread),
            "clear_hitl_answers of a run": lambda cp, thread, new: cp.clear_hitl_answers(
                thread, ["question"], run_id="open"
            ),
        }
    return writes


async def attempt(write: Operation, *arguments: Any) -> str | None:
    """The error that it ends in."""
    try:
        await write(*arguments)
    except Exception as error:  # whatever the release, its driver and the database make of it
        return f"{type(error).__name__}: {error}"
    return None
