"""An order knows the thread in which it was placed."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
depends_on = "threadkeep_v5"  # from here on, the shop needs what Threadkeep had at this revision


def upgrade() -> None:
    op.add_column("orders", sa.Column("thread_id", sa.String(255)))
    op.create_index("ix_orders_thread_id", "orders", ["thread_id"])


def downgrade() -> None:
    op.drop_index("ix_orders_thread_id", "orders")
    op.drop_column("orders", "thread_id")
