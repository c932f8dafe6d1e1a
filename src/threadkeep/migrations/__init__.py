"""The schema's history, and how a database is brought to its head. Alembic owns every step."""

from __future__ import annotations

from threadkeep.migrations.upgrading import upgrade

__all__ = ["upgrade"]
