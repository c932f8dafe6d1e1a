"""The conformance kit: the contract as tests, for anyone's backend.

Subclass the contract of each capability your backend has, and say in a fixture how it is made::

    class TestMyBackend(MinimalContract):
        @pytest.fixture
        async def checkpointer(self, tmp_path):
            async with MyCheckpointer(tmp_path) as checkpointer:
                yield checkpointer

`contract_for(MyCheckpointer)` is a base class with every capability whose methods the class has. Three contracts are
about options of the constructor and are named by hand: `TypesContract`, `LimitsContract` and `LockTimeoutContract`.
They ask for a fixture `make_checkpointer`, a function of those options that gives a new checkpointer, not yet open.
"""

import pytest

# Before the modules are imported: their asserts shall explain themselves like those of any test file.
pytest.register_assert_rewrite(
    *(
        f"threadkeep.testing.{module}"
        for module in (
            "answers",
            "checkpoints",
            "concurrency",
            "forks",
            "leases",
            "ledger",
            "minimal",
            "pending",
            "resuming",
            "runs",
            "threads",
            "transactions",
        )
    ),
    "threadkeep.testing.types",
    "threadkeep.testing.values",
)

from threadkeep.testing.answers import AnswersContract  # noqa: E402 - see above
from threadkeep.testing.capabilities import contract_for  # noqa: E402
from threadkeep.testing.checkpoints import CheckpointsContract  # noqa: E402
from threadkeep.testing.concurrency import ConcurrencyContract  # noqa: E402
from threadkeep.testing.forks import ForkRecordContract, ForksContract  # noqa: E402
from threadkeep.testing.leases import LeasesContract  # noqa: E402
from threadkeep.testing.ledger import LedgerContract  # noqa: E402
from threadkeep.testing.minimal import MinimalContract  # noqa: E402
from threadkeep.testing.pending import PendingContract  # noqa: E402
from threadkeep.testing.resuming import ResumeContract  # noqa: E402
from threadkeep.testing.runs import RunListContract, RunsContract  # noqa: E402
from threadkeep.testing.threads import StatusContract, ThreadsContract  # noqa: E402
from threadkeep.testing.transactions import LockTimeoutContract, TransactionsContract  # noqa: E402
from threadkeep.testing.types import TypesContract  # noqa: E402
from threadkeep.testing.values import LimitsContract, ValuesContract  # noqa: E402

__all__ = [
    "AnswersContract",
    "CheckpointsContract",
    "ConcurrencyContract",
    "ForkRecordContract",
    "ForksContract",
    "LeasesContract",
    "LedgerContract",
    "LimitsContract",
    "LockTimeoutContract",
    "MinimalContract",
    "PendingContract",
    "ResumeContract",
    "RunListContract",
    "RunsContract",
    "StatusContract",
    "ThreadsContract",
    "TransactionsContract",
    "TypesContract",
    "ValuesContract",
    "contract_for",
]
