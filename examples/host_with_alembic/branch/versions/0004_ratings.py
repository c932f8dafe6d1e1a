"""Orders have ratings."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "ratings",
        sa.Column("order_id", sa.Integer, sa.ForeignKey("orders.id"), primary_key=True, autoincrement=False),
        sa.Column("stars", sa.Integer, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("ratings")
