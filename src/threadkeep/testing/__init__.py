"""The conformance kit: the contract as tests, for anyone's backend.

Subclass the contract of each capability your backend has, and say in a fixture how it is made::

    class TestMyBackend(MinimalContract):
        @pytest.fixture
        async def checkpointer(self, tmp_path):
            async with MyCheckpointer(tmp_path) as checkpointer:
                yield checkpointer

`contract_for(MyCheckpointer)` is a base class with every capability whose methods the class has. Five contracts are
about options of the constructor and are named by hand: `TypesContract` and `HostMessagesContract` (`message_type=`),
`LimitsContract`, `LockTimeoutContract` and `SearchContract` (`searchable=`). They ask for a fixture
`make_checkpointer`, a function of those options that gives a new checkpointer, not yet open.
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
            "context",
            "files",
            "forks",
            "leases",
            "ledger",
            "messages",
            "minimal",
            "parts",
            "pending",
            "resuming",
            "runs",
            "searching",
            "sessions",
            "threads",
            "transactions",
            "usage",
        )
    ),
    "threadkeep.testing.types",
    "threadkeep.testing.values",
)

from threadkeep.testing.answers import AnswersContract  # noqa: E402 - see above
from threadkeep.testing.capabilities import contract_for  # noqa: E402
from threadkeep.testing.checkpoints import CheckpointsContract  # noqa: E402
from threadkeep.testing.concurrency import ConcurrencyContract  # noqa: E402
from threadkeep.testing.context import ContextContract  # noqa: E402
from threadkeep.testing.files import FilesContract  # noqa: E402
from threadkeep.testing.forks import ForkRecordContract, ForksContract  # noqa: E402
from threadkeep.testing.leases import LeasesContract  # noqa: E402
from threadkeep.testing.ledger import LedgerContract  # noqa: E402
from threadkeep.testing.messages import HostMessagesContract, MessagesContract  # noqa: E402
from threadkeep.testing.minimal import MinimalContract  # noqa: E402
from threadkeep.testing.parts import PartsContract  # noqa: E402
from threadkeep.testing.pending import PendingContract  # noqa: E402
from threadkeep.testing.resuming import ResumeContract  # noqa: E402
from threadkeep.testing.runs import RunListContract, RunsContract  # noqa: E402
from threadkeep.testing.searching import SearchContract  # noqa: E402
from threadkeep.testing.sessions import SessionsContract  # noqa: E402
from threadkeep.testing.threads import StatusContract, ThreadsContract  # noqa: E402
from threadkeep.testing.transactions import LockTimeoutContract, TransactionsContract  # noqa: E402
from threadkeep.testing.types import TypesContract  # noqa: E402
from threadkeep.testing.usage import UsageContract  # noqa: E402
from threadkeep.testing.values import LimitsContract, ValuesContract  # noqa: E402

__all__ = [
    "AnswersContract",
    "CheckpointsContract",
    "ConcurrencyContract",
    "ContextContract",
    "FilesContract",
    "ForkRecordContract",
    "ForksContract",
    "HostMessagesContract",
    "LeasesContract",
    "LedgerContract",
    "LimitsContract",
    "LockTimeoutContract",
    "MessagesContract",
    "MinimalContract",
    "PartsContract",
    "PendingContract",
    "ResumeContract",
    "RunListContract",
    "RunsContract",
    "SearchContract",
    "SessionsContract",
    "StatusContract",
    "ThreadsContract",
    "TransactionsContract",
    "TypesContract",
    "UsageContract",
    "ValuesContract",
    "contract_for",
]
