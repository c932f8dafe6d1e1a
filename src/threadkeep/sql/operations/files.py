"""Files: which content was met at which path. They belong to no thread, and one statement writes one."""

from __future__ import annotations

import sqlalchemy as sa

from threadkeep.json_values import digest
from threadkeep.records import StoredFile
from threadkeep.sql.dialects.base import Hooks
from threadkeep.sql.tables import files

_LATEST = (
    sa.select(*(files.c[name] for name in StoredFile._fields))
    .order_by(files.c.stored_at.desc(), files.c.content_id.desc(), files.c.path_key.desc())
    .limit(1)
)


def put(conn: sa.Connection, hooks: Hooks, file: StoredFile) -> None:
    """Note the file, in the place of the same content at the same path."""
    hooks.put(conn, files, {**file._asdict(), "path_key": digest(file.path)})


def by_content(conn: sa.Connection, hooks: Hooks, content_id: str) -> StoredFile | None:
    """The latest note of this content, or None."""
    row = conn.execute(_LATEST.where(files.c.content_id == content_id)).one_or_none()
    return StoredFile(*row) if row else None


def by_path(conn: sa.Connection, hooks: Hooks, path: str) -> StoredFile | None:
    """The latest note at this path, or None."""
    row = conn.execute(_LATEST.where(files.c.path_key == digest(path))).one_or_none()
    return StoredFile(*row) if row else None


def delete(conn: sa.Connection, hooks: Hooks, content_id: str) -> bool:
    """Forget this content."""
    return conn.execute(sa.delete(files).where(files.c.content_id == content_id)).rowcount > 0
