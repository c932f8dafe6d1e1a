"""What Alembic runs: the shop's revisions, on the database in DATABASE_URL."""

import asyncio
import os

from alembic import context
from shop import metadata
from sqlalchemy import Connection, NullPool
from sqlalchemy.ext.asyncio import create_async_engine

from threadkeep.migrations import hosts_own

URL = os.environ["DATABASE_URL"]


def migrate(connection: Connection | None = None) -> None:
    context.configure(
        connection=connection,
        url=URL,
        literal_binds=context.is_offline_mode(),
        target_metadata=metadata,
        include_name=hosts_own,  # without it, autogenerate proposes to drop Threadkeep's tables
    )
    with context.begin_transaction():
        context.run_migrations()


async def connect_and_migrate() -> None:
    engine = create_async_engine(URL, poolclass=NullPool)
    async with engine.connect() as connection:
        await connection.run_sync(migrate)


if context.is_offline_mode():
    migrate()
else:
    asyncio.run(connect_and_migrate())
