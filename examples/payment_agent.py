"""An agent that pays three people, and is killed four times while it does. Each is paid once.

    python examples/payment_agent.py
    python examples/payment_agent.py postgresql://user@host/database

The program starts itself as the agent, lets it work up to a moment that it has chosen, kills it there with SIGKILL, and
starts it again, until the agent is done. The model is scripted and the bank is a file: no key, no network. All that one
life of the agent knows of the life before is the database, and what it can ask the bank.
"""

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from uuid import uuid4

import threadkeep
from threadkeep import (
    AssistantMessage,
    CheckpointerMethods,
    Completed,
    Failed,
    LedgerEntry,
    TextContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)

RUN = "run-1"
PAYMENTS = {"alice": 30, "bob": 20, "carol": 50}

# Where each life of the agent ends. The last one ends by itself.
KILLS = [
    "about to ask the bank for alice",
    "done with alice",
    "the bank has paid bob",
    "the ledger has carol's receipt",
]


class Bank:
    """Somebody else's program: it does not know our database, and pays whatever it is asked to."""

    def __init__(self, book: Path) -> None:
        self._book = book

    def pay(self, to: str, amount: int, reference: str) -> str:
        """Pay, as often as it is called."""
        with self._book.open("a") as book:
            book.write(f"{reference} {to} {amount}\n")
        return f"receipt {reference}"

    def find(self, reference: str) -> str | None:
        """The receipt of the payment with this reference."""
        return next((f"receipt {reference}" for line in self.payments() if line[0] == reference), None)

    def payments(self) -> list[list[str]]:
        """All there are: reference, payee and amount of each."""
        return [line.split() for line in self._book.read_text().splitlines()] if self._book.exists() else []


# ---- the agent -----------------------------------------------------------------------------------------------


async def agent(url: str, thread_id: str, bank: Bank) -> None:
    """Go on with the thread, wherever it stands, until the model has no more to do."""
    # One agent at a time has this name, so what an earlier one left behind is in doubt at once, not when it expires.
    async with threadkeep.open_checkpointer(url, owner="payment-agent") as cp:
        await wake_up(cp, thread_id)
        while True:
            data = await cp.load(thread_id)
            assert data is not None
            last = data.messages[-1]
            call = next((part for part in last.content if isinstance(part, ToolCall)), None)
            if call is not None:
                await use_tool(cp, thread_id, bank, call)
                continue
            if last.role == "assistant":
                break
            await cp.append(thread_id, [model(data.messages)])
        await cp.mark_run_complete(thread_id, RUN)
        await cp.threads.set_status(thread_id, "completed")
        say(f"all done: {last.content[0].text}")


async def wake_up(cp: CheckpointerMethods, thread_id: str) -> None:
    """Ask the database where the thread stands."""
    report = await cp.resume(thread_id)
    if report is None:
        say("a new thread")
        await cp.claim_run(thread_id, RUN)
        wish = ", ".join(f"{to} {amount}" for to, amount in PAYMENTS.items())
        await cp.append(thread_id, [UserMessage(content=[TextContent(text=f"Pay {wish}.")], run_id=RUN)])
        return
    spent = report.checkpoint.budget_spent_usd if report.checkpoint else 0
    say(f"resuming: {spent} spent, {', '.join(run.run_id for run in report.open_runs)} is open")
    for call in report.unanswered_calls:
        say(f"{call.call_id} has no result in the transcript")
    for entry in report.calls_in_doubt:
        say(f"{entry.call_id}: {entry.tool_name} {entry.args['to']} {entry.args['amount']} is {entry.state}")


async def use_tool(cp: CheckpointerMethods, thread_id: str, bank: Bank, call: ToolCall) -> None:
    """Run the tool, once, and give the model its result."""
    to = call.arguments["to"]

    def pay(to: str, amount: int) -> str:
        moment(f"about to ask the bank for {to}")
        receipt = bank.pay(to, amount, reference=f"{thread_id}/{call.id}")
        moment(f"the bank has paid {to}")
        return receipt

    def verify(entry: LedgerEntry) -> Completed | Failed:
        receipt = bank.find(f"{thread_id}/{entry.call_id}")
        say(f"asking the bank about {entry.call_id}: it {'has paid' if receipt else 'knows nothing of it'}")
        return Completed(receipt) if receipt else Failed("the bank knows nothing of it")

    receipt = await cp.ledger.once(thread_id, call.id, call.name, call.arguments, pay, run_id=RUN, verify=verify)
    moment(f"the ledger has {to}'s receipt")
    result = ToolResultMessage(
        tool_call_id=call.id, tool_name=call.name, content=[TextContent(text=receipt)], run_id=RUN
    )
    # The result and the checkpoint belong together: nobody finds one without the other.
    async with cp.transaction() as tx:
        await tx.append(thread_id, [result])
        saved = await tx.checkpoints.latest(thread_id, messages=False)
        spent = (saved.budget_spent_usd if saved else 0) + call.arguments["amount"]
        await tx.checkpoints.save(thread_id, budget_spent_usd=spent)
    moment(f"done with {to}")


def model(history: list[Any]) -> AssistantMessage:
    """Stands in for a language model: pays whoever has not been paid yet."""
    answered = sum(message.role == "tool_result" for message in history)
    if answered == len(PAYMENTS):
        return AssistantMessage(content=[TextContent(text="Everybody has been paid.")], run_id=RUN)
    to, amount = list(PAYMENTS.items())[answered]
    call = ToolCall(id=f"call-{answered + 1}", name="pay", arguments={"to": to, "amount": amount})
    return AssistantMessage(content=[call], stop_reason="tool_use", run_id=RUN)


def say(text: str) -> None:
    """A line of the agent's, which the program prints."""
    print(f"say {text}", flush=True)


def moment(name: str) -> None:
    """A place where the agent may be killed: it waits until it is, or is told to go on."""
    print(f"moment {name}", flush=True)
    sys.stdin.readline()


# ---- the program that starts and kills it --------------------------------------------------------------------


def live(number: int, kill_at: str | None, words: list[str]) -> None:
    """One life of the agent."""
    print(f"\nagent {number} starts")
    with subprocess.Popen(  # noqa: S603 - it is this program
        [sys.executable, __file__, "--agent", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for line in process.stdout:
            kind, _, text = line.strip().partition(" ")
            print(f"  {text}")
            if kind == "moment" and text == kill_at:
                process.kill()
                break
            if kind == "moment":
                process.stdin.write("go on\n")
                process.stdin.flush()
    if kill_at is None:
        assert process.returncode == 0, "the last one ends by itself"
    else:
        assert process.returncode < 0, f"nothing came to {kill_at!r}"
        print("  killed")


async def prepare(url: str) -> None:
    """On a server the tables are made by a deploy step. This is ours."""
    await threadkeep.upgrade(url)


async def account(url: str, thread_id: str, bank: Bank) -> None:
    """Compare what the bank has done with what was wanted, and leave nothing behind."""
    print("\nthe ledger")
    async with threadkeep.open_checkpointer(url) as cp:
        for entry in await cp.ledger.list(thread_id):
            print(f"  {entry.call_id}: {entry.args['to']:5} {entry.state}, issued {times(entry.attempt)}")
        report = await cp.resume(thread_id)
        assert report is not None
        assert report.is_clean
        await cp.threads.delete(thread_id)
    print("\nthe bank's book")
    paid = [(to, int(amount)) for _, to, amount in bank.payments()]
    for to, amount in PAYMENTS.items():
        print(f"  {to:5} {amount}: paid {times(paid.count((to, amount)))}")
    assert sorted(paid) == sorted(PAYMENTS.items()), paid
    print("\neach payment was made exactly once")


def times(count: int) -> str:
    """A number of times in words."""
    return "once" if count == 1 else f"{count} times"


def main() -> None:
    """Kill the agent at each of the chosen moments, and see what the bank says then."""
    if sys.argv[1:2] == ["--agent"]:
        url, thread_id, path = sys.argv[2:]
        asyncio.run(agent(url, thread_id, Bank(Path(path))))
        return
    with tempfile.TemporaryDirectory() as folder:
        url = sys.argv[1] if len(sys.argv) > 1 else f"sqlite:///{folder}/agent.db"
        thread_id, book = f"payments-{uuid4().hex}", Path(folder) / "bank.txt"
        asyncio.run(prepare(url))
        for number, kill_at in enumerate([*KILLS, None], start=1):
            live(number, kill_at, [url, thread_id, str(book)])
        asyncio.run(account(url, thread_id, Bank(book)))


if __name__ == "__main__":
    main()
