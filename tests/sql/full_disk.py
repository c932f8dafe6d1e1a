"""A disk that is nearly full, as SQLite sees it."""

import sqlalchemy as sa


def leave_little_room(conn: sa.Connection) -> None:
    """Let the database grow by no more than some pages, on this connection."""
    pages = conn.exec_driver_sql("PRAGMA page_count").scalar_one()
    conn.exec_driver_sql(f"PRAGMA max_page_count = {pages + 50}")
