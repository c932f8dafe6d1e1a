"""A host with an engine and a table of its own: an order and the conversation about it, in one transaction.

    pip install 'threadkeep[sqlite]'
    python examples/host_transaction.py

On a server it is the same: another URL, and PostgresCheckpointer or MySQLCheckpointer.
"""

import asyncio
import tempfile
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

import threadkeep
from threadkeep import AssistantMessage, SQLiteCheckpointer, TextContent, TransactionConflictError

orders = sa.Table(
    "orders",
    sa.MetaData(),
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("item", sa.String(50), nullable=False),
)


def said(text: str, run_id: str) -> AssistantMessage:
    """What the agent says."""
    return AssistantMessage(content=[TextContent(text=text)], run_id=run_id)


async def place_order(engine: AsyncEngine, cp: SQLiteCheckpointer, thread_id: str, item: str) -> None:
    """The host begins and commits. Either the order, the message and the completion are all there, or none is."""
    run_id = f"order-{item}"
    async with engine.begin() as connection:
        tx = cp.using(connection)
        await tx.claim_run(thread_id, run_id)
        await connection.execute(sa.insert(orders).values(item=item))
        await tx.append(thread_id, [said(f"I have ordered a {item}.", run_id)])
        await tx.mark_run_complete(thread_id, run_id)
        if item == "unicorn":
            raise LookupError("there are no unicorns")


async def again_on_conflict(work: Any, attempts: int = 5) -> None:
    """A server may end a transaction in favour of another one. Then all of it runs again, the host's part included."""
    for attempt in range(attempts):
        try:
            await work()
            return
        except TransactionConflictError:
            if attempt == attempts - 1:
                raise


async def main() -> None:
    """One order that works, and one that is rolled back with everything that was said about it."""
    with tempfile.TemporaryDirectory() as folder:
        engine = create_async_engine(f"sqlite+aiosqlite:///{folder}/shop.db")
        async with engine.begin() as connection:
            await connection.run_sync(orders.create)
        await threadkeep.upgrade(engine)

        async with SQLiteCheckpointer(engine) as cp:
            await again_on_conflict(lambda: place_order(engine, cp, "chat", "lamp"))
            try:
                await place_order(engine, cp, "chat", "unicorn")
            except LookupError as error:
                print("rolled back:", error)
            thread = await cp.load("chat")
            assert thread is not None
            print("said:   ", [message.content[0].text for message in thread.messages])
            print("runs:   ", [run.run_id for run in await cp.runs.list("chat")])
        async with engine.connect() as connection:  # closing the checkpointer has left the host's engine alone
            print("ordered:", list((await connection.execute(sa.select(orders.c.item))).scalars()))
        await engine.dispose()


if __name__ == "__main__":
    asyncio.run(main())
