"""A shop with tables of its own, and an agent that takes its orders: both keep what they know in one database.

Its tables are made by Alembic, in one_head/ or in branch/. Then this places an order:

    DATABASE_URL=sqlite+aiosqlite:///shop.db python shop.py
"""

import asyncio
import os
from uuid import uuid4

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from threadkeep import AssistantMessage, MySQLCheckpointer, PostgresCheckpointer, SQLiteCheckpointer, TextContent

metadata = sa.MetaData()

users = sa.Table(
    "users",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("email", sa.String(200), nullable=False, unique=True),
)

orders = sa.Table(
    "orders",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("user_id", sa.ForeignKey("users.id"), nullable=False),
    sa.Column("item", sa.String(50), nullable=False),
    # Not a foreign key to Threadkeep's table: an order outlives the conversation it was placed in.
    sa.Column("thread_id", sa.String(255)),
    sa.Index("ix_orders_thread_id", "thread_id"),
)

ratings = sa.Table(
    "ratings",
    metadata,
    sa.Column("order_id", sa.ForeignKey("orders.id"), primary_key=True, autoincrement=False),
    sa.Column("stars", sa.Integer, nullable=False),
)

CHECKPOINTERS = {
    "sqlite": SQLiteCheckpointer,
    "postgresql": PostgresCheckpointer,
    "mysql": MySQLCheckpointer,
    "mariadb": MySQLCheckpointer,
}


async def main() -> None:
    """A new user, an order, and what the agent says about it: one transaction."""
    engine = create_async_engine(os.environ["DATABASE_URL"])
    async with CHECKPOINTERS[engine.dialect.name](engine) as cp:
        async with engine.begin() as connection:
            email = f"{uuid4().hex}@example.com"
            await connection.execute(sa.insert(users).values(email=email))
            buyer = sa.select(users.c.id).where(users.c.email == email).scalar_subquery()
            await connection.execute(sa.insert(orders).values(user_id=buyer, item="lamp", thread_id="chat"))
            said = AssistantMessage(content=[TextContent(text="I have ordered a lamp.")])
            await cp.using(connection).append("chat", [said])
        thread = await cp.load("chat")
    assert thread is not None
    print("said:   ", [message.content[0].text for message in thread.messages])
    async with engine.connect() as connection:
        bought = sa.select(orders.c.item).where(orders.c.thread_id == "chat")
        print("ordered:", list((await connection.execute(bought)).scalars()))
    await engine.dispose()


if __name__ == "__main__":
    asyncio.run(main())
