"""The shop gets an agent, whose threads Threadkeep keeps.

A later release of Threadkeep may bring revisions of its own. A new revision of the shop's like this one applies them.
"""

from alembic import op

from threadkeep.migrations import upgrade_with

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    upgrade_with(op)


def downgrade() -> None:
    """The threads stay where they are, and upgrading again finds them there."""
