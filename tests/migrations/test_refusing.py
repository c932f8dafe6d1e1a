"""A database that cubepi has written into is not touched, until its conversations can be taken over."""

import sqlite3
from pathlib import Path

import pytest
import sqlalchemy as sa

from servers import SERVERS, fresh_database
from threadkeep import CubepiSchemaMismatch, SQLiteCheckpointer, upgrade
from threadkeep.migrations.upgrading import on_connection


async def test_a_file_with_cubepis_tables_is_refused_and_kept(tmp_path: Path) -> None:
    """Its tables have other names on SQLite: opened as a new file, it would look empty."""
    path = tmp_path / "cubepi.db"
    with sqlite3.connect(path) as conn:
        conn.execute("CREATE TABLE messages (id INTEGER PRIMARY KEY, thread_id TEXT, message_json TEXT)")
    conn.close()
    with pytest.raises(CubepiSchemaMismatch, match="cubepi"):
        await upgrade(f"sqlite:///{path}")
    with pytest.raises(CubepiSchemaMismatch, match="cubepi"):
        async with SQLiteCheckpointer(path):
            pass
    with sqlite3.connect(path) as conn:
        assert conn.execute("SELECT name FROM sqlite_master").fetchall() == [("messages",)]
    conn.close()


@pytest.mark.parametrize("kind", SERVERS)
async def test_a_server_with_cubepis_threads_is_refused_and_kept(kind: str) -> None:
    def make(conn: sa.Connection) -> None:
        conn.exec_driver_sql("CREATE TABLE cubepi_threads (thread_id VARCHAR(255) PRIMARY KEY)")
        conn.exec_driver_sql("INSERT INTO cubepi_threads VALUES ('theirs')")

    with fresh_database(kind) as url:
        await on_connection(url, make)
        with pytest.raises(CubepiSchemaMismatch, match="cubepi"):
            await upgrade(url)
        tables = set(await on_connection(url, lambda conn: sa.inspect(conn).get_table_names()))
        # Alembic's own table is what MySQL may keep of the attempt: it cannot roll it back.
        assert tables - {"cubepi_alembic_version"} == {"cubepi_threads"}


async def test_a_hosts_table_of_the_same_name_is_not_cubepis(tmp_path: Path) -> None:
    path = tmp_path / "host.db"
    with sqlite3.connect(path) as conn:
        conn.execute("CREATE TABLE messages (id INTEGER PRIMARY KEY, body TEXT)")
    conn.close()
    async with SQLiteCheckpointer(path) as cp:
        await cp.save_extra("thread", {})
