"""What holds for every revision, today's and those to come."""

import ast
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.script import Script, ScriptDirectory

import threadkeep.migrations
from migrations.databases import Place, version_rows
from threadkeep.migrations.upgrading import alembic_config, on_connection
from threadkeep.sql.tables import SCHEMA_VERSION
from threadkeep.version import __version__, as_numbers

SCRIPTS = ScriptDirectory.from_config(alembic_config())
OLDEST_FIRST: list[Script] = list(reversed(list(SCRIPTS.walk_revisions())))
FILES = sorted((Path(threadkeep.migrations.__file__).parent / "versions").glob("*.py"))
MAY_IMPORT = {"alembic.op", "sqlalchemy", "sqlalchemy.dialects.mysql", "sqlalchemy.dialects.postgresql"}


def test_there_is_one_head_and_one_base() -> None:
    assert len(SCRIPTS.get_heads()) == 1
    assert len(SCRIPTS.get_bases()) == 1
    assert len(OLDEST_FIRST) == len(FILES)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_revision_imports_nothing_of_ours(file: Path) -> None:
    """It must still do tomorrow what it did when it was shipped."""
    imported = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            imported |= {f"{node.module}.{alias.name}" for alias in node.names}
    ours = {name for name in imported - MAY_IMPORT if name.partition(".")[0] not in sys.stdlib_module_names}
    assert ours == set()


async def test_each_revision_writes_our_version_row(place: Place) -> None:
    written = []
    for script in OLDEST_FIRST:

        def upgrade(conn: sa.Connection, revision: str = script.revision) -> None:
            command.upgrade(alembic_config(conn), revision)

        await on_connection(place.url, upgrade)
        if script.down_revision is None:
            continue  # the baseline is cubepi's, which has no such row
        rows = await version_rows(place)
        assert rows == [(script.module.SCHEMA_VERSION, script.module.OLDEST_LIBRARY)]
        written.append(rows[0])

    numbers = [version for version, _ in written]
    assert numbers == list(range(1004, 1004 + len(numbers)))
    assert numbers[-1] == SCHEMA_VERSION
    assert all(as_numbers(oldest) <= as_numbers(__version__) for _, oldest in written)
