"""The schema's history, and how a database is brought to its head. Alembic owns every step."""

from __future__ import annotations

from threadkeep.migrations.environment import hosts_own
from threadkeep.migrations.upgrading import Progress, renamed_id, upgrade, upgrade_with

__all__ = ["Progress", "hosts_own", "renamed_id", "upgrade", "upgrade_with"]
