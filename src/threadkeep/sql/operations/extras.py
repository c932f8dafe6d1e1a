"""Extra: the free-form state of a thread, merged key by key."""

from __future__ import annotations

import sqlalchemy as sa

from threadkeep import rules
from threadkeep.sql.dialects.base import Hooks
from threadkeep.sql.parameters import THREAD
from threadkeep.sql.prepared import Prepared
from threadkeep.sql.tables import threads

_SET = Prepared(sa.update(threads).where(threads.c.thread_id == THREAD).values(extra=sa.bindparam("merged")))


def save_extra(conn: sa.Connection, hooks: Hooks, thread_id: str, changes: str, max_bytes: int) -> None:
    """Merge the changes into what is there."""
    (extra,) = hooks.lock_or_create(conn, thread_id, rules.utc_now(), threads.c.extra)
    merged = rules.merged_extra(thread_id, extra, changes, max_bytes)
    if merged != extra:
        _SET.count(conn, {"thread": thread_id, "merged": merged})
