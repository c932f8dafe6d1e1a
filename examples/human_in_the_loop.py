"""A run pauses for a human, the process ends, and another one resumes it.

The model and the tool are scripted: no key, no network. Each of the three functions below could be a process, or a
machine, of its own: all they share is the database.
"""

import asyncio
import tempfile
import time
from pathlib import Path

from threadkeep import (
    ApproveRequest,
    AssistantMessage,
    HitlRequest,
    SQLiteCheckpointer,
    TextContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)

THREAD, RUN = "refund-1042", "run-1"


async def ask(path: Path) -> None:
    """The agent: it gets as far as a tool call that a human must approve, stores the question and ends."""
    call = ToolCall(id="call-1", name="refund", arguments={"order": 1042, "amount": 49})
    async with SQLiteCheckpointer(path) as cp:
        await cp.claim_run(THREAD, RUN)
        await cp.append(THREAD, [UserMessage(content=[TextContent(text="My money back!")], run_id=RUN)])
        # The call and the question belong together: nobody finds one without the other.
        async with cp.transaction() as tx:
            await tx.append(THREAD, [AssistantMessage(content=[call], stop_reason="tool_use", run_id=RUN)])
            request = HitlRequest(
                question_id=call.id,
                payload=ApproveRequest(tool_name=call.name, tool_call_id=call.id, args=call.arguments),
                created_at=time.time(),
            )
            await tx.save_pending_request(THREAD, request, run_id=RUN)


async def approve(path: Path, approved: bool) -> bool:
    """The human's side: answer the question that is pending. False if somebody else was faster."""
    async with SQLiteCheckpointer(path) as cp:
        pending = await cp.load_pending(THREAD)
        if pending is None:
            return False
        request, run_id = pending
        print(f"run {run_id!r} asks: may {request.payload.tool_name} run with {request.payload.args}?")
        async with cp.transaction() as tx:
            # Clearing decides: of two humans who answer at once, one gets True.
            if not await tx.clear_pending_request_if_matches(THREAD, question_id=request.question_id, run_id=run_id):
                return False
            await tx.save_hitl_answer(THREAD, request.question_id, {"approved": approved}, run_id=run_id)
            return True


async def resume(path: Path) -> None:
    """The agent again: it picks up the thread where the messages end, and finds the answer in the ledger."""
    async with SQLiteCheckpointer(path) as cp:
        thread = await cp.load(THREAD)
        assert thread is not None
        last = thread.messages[-1]
        call = last.content[0]
        answer = await cp.load_hitl_answer(THREAD, call.id, run_id=last.run_id)
        text = f"{call.arguments['amount']} refunded" if answer["approved"] else "refused by a human"
        result = ToolResultMessage(
            tool_call_id=call.id, tool_name=call.name, content=[TextContent(text=text)], run_id=last.run_id
        )
        final = AssistantMessage(content=[TextContent(text=f"Done: {text}.")], run_id=last.run_id)
        async with cp.transaction() as tx:
            await tx.append(THREAD, [result, final])
            await tx.clear_hitl_answers(THREAD, run_id=last.run_id)
            await tx.mark_run_complete(THREAD, last.run_id)


async def main() -> None:
    """Ask, answer twice, resume."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "agent.db"
        await ask(path)
        assert await approve(path, approved=True)
        assert not await approve(path, approved=False), "the question is answered already"
        await resume(path)
        async with SQLiteCheckpointer(path) as cp:
            for message in await cp.snapshot(THREAD, after_run_id=RUN):
                block = message.content[0]
                print(f"{message.role:12} {getattr(block, 'text', None) or f'calls {block.name}'}")


if __name__ == "__main__":
    asyncio.run(main())
