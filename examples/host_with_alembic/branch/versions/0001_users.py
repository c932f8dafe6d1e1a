"""The shop has users."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = ("shop",)  # to say which branch a new revision belongs to: `alembic revision --head shop@head`


def upgrade() -> None:
    op.create_table(
        "users",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("email", sa.String(200), nullable=False, unique=True),
    )


def downgrade() -> None:
    op.drop_table("users")
