"""An upgrade that was killed, and the next one, which finishes it."""

import threadkeep
from migrations.databases import Place, back_to, schema_of
from migrations.golden import everything
from migrations.program import killed_upgrades
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
