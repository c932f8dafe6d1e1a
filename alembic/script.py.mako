"""${message}

Each step looks first whether it is done: MySQL commits every DDL statement, and an interrupted upgrade is run again.
"""

import sqlalchemy as sa
from alembic import op
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}

SCHEMA_VERSION = ...  # the next number; `threadkeep/sql/tables.py` gets it too
OLDEST_LIBRARY = ...  # the oldest release of this library that may open it


def upgrade() -> None:
    ${upgrades if upgrades else "pass"}
    # Typed, or --sql could not write the values into its script.
    row = sa.table(
        "cubepi_schema_version", sa.column("version", sa.Integer), sa.column("oldest_library", sa.String)
    )
    op.execute(sa.delete(row))
    op.execute(sa.insert(row).values(version=SCHEMA_VERSION, oldest_library=OLDEST_LIBRARY))


def downgrade() -> None:
    ${downgrades if downgrades else "pass"}
