import asyncio
from uuid import uuid4

from threadkeep import AssistantMessage, SQLiteCheckpointer, TextContent, UserMessage


async def main() -> None:
    run = uuid4().hex
    async with SQLiteCheckpointer("agent.db") as cp:
        await cp.claim_run("trip", run)
        await cp.append("trip", [UserMessage(content=[TextContent(text="Where to?")], run_id=run)])
        await cp.append("trip", [AssistantMessage(content=[TextContent(text="Porto.")], run_id=run)])
        await cp.mark_run_complete("trip", run)
        print(*(f"{m.role}: {m.content[0].text}" for m in (await cp.load("trip")).messages), sep="\n")


asyncio.run(main())
