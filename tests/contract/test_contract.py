"""Our own backends, held to the whole conformance kit. The tests are in `threadkeep.testing`."""

from threadkeep import MemoryCheckpointer
from threadkeep.testing import (
    HostMessagesContract,
    LimitsContract,
    LockTimeoutContract,
    SearchContract,
    TypesContract,
    contract_for,
)
from threadkeep.testing.capabilities import CAPABILITIES, contracts_of


class TestContract(contract_for(MemoryCheckpointer())):  # type: ignore[misc] # the base class is made at run time
    """Every capability. All our classes have the same methods, so memory's stand for all."""


class TestTypes(TypesContract):
    """`message_type` and `request_type`."""


class TestHostMessages(HostMessagesContract):
    """`message_type`, and what messages of any class have: ids, a window, usage."""


class TestLimits(LimitsContract):
    """`max_value_bytes`."""


class TestLockTimeout(LockTimeoutContract):
    """`lock_timeout`."""


class TestSearch(SearchContract):
    """`searchable`."""


def test_no_test_of_one_contract_hides_that_of_another() -> None:
    names = [name for contract, _ in CAPABILITIES for name in vars(contract) if name.startswith("test_")]
    assert sorted(names) == sorted(set(names))


def test_we_are_held_to_every_contract() -> None:
    assert contracts_of(MemoryCheckpointer()) == [contract for contract, _ in CAPABILITIES]
