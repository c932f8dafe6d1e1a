"""Upgrades that others finish: the next one, after a kill, or an administrator, with a script."""

import threadkeep
from migrations.databases import Place, back_to, schema_of
from migrations.golden import everything
from migrations.program import alembic_well, killed_upgrades
from threadkeep.migrations.upgrading import on_connection


async def finished_after_each_kill(place: Place, revision: str, statements: int) -> set[str]:
    """Kill the upgrade from this revision before each of its statements. The schemas that it left."""
    before = await place.run(schema_of), await place.run(everything)
    await threadkeep.upgrade(place.url)
    after = await place.run(schema_of), await place.run(everything)
    left = set()
    for statement in range(1, statements + 1):
        await on_connection(place.url, back_to(revision))
        assert (await place.run(schema_of), await place.run(everything)) == before
        killed_upgrades((place.url, statement))
        left.add(repr(await place.run(schema_of)))
        await threadkeep.upgrade(place.url)
        assert (await place.run(schema_of), await place.run(everything)) == after
    return left


async def apply_script(place: Place, *options: str, revisions: str = "head") -> None:
    """Print the script and run it, as a database's administrator would."""
    script = alembic_well(*options, "upgrade", revisions, "--sql", url=place.url)
    lines = [line for line in script.splitlines() if not line.startswith("--")]
    statements = [statement.strip() for statement in "\n".join(lines).split(";") if statement.strip()]
    if place.kind in ("sqlite", "postgresql"):  # MySQL's DDL has no transactions
        assert (statements.pop(0), statements.pop()) == ("BEGIN", "COMMIT")
    await place.execute(*statements)
