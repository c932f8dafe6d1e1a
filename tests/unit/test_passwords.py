"""Whatever goes wrong with a URL that holds a password, nothing that is raised shows the password."""

import traceback
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import make_url

import threadkeep
from servers import SERVERS, server_url
from threadkeep import MySQLCheckpointer, PostgresCheckpointer

PASSWORD = "hidden-Pa55word"  # noqa: S105 - of nobody

NOBODY_THERE = "127.0.0.1:1"
# {} is where the password is. Some of them are what people write who do not know that @, / and ? must be escaped.
URLS = [
    "{scheme}://user:{password}@" + NOBODY_THERE + "/database",
    "{scheme}://user:{password}@no.such.host.invalid/database",
    "{scheme}://user:{password}@127.0.0.1:port/database",
    "{scheme}://user:{password}@[::1/database",
    "{scheme}://" + NOBODY_THERE + "/database?password={password}",
    "{scheme}://user:{password}/x@" + NOBODY_THERE + "/database",
    "{scheme}://user:x/{password}@" + NOBODY_THERE + "/database",
    "{scheme}://user:{password}#x@" + NOBODY_THERE + "/database",
    "{scheme}://user:{password}?x@" + NOBODY_THERE + "/database",
    "{scheme}://user:x?{password}@" + NOBODY_THERE + "/database",
    "{scheme}://user:x@{password}@" + NOBODY_THERE + "/database",
    "{scheme}://user:x:{password}@" + NOBODY_THERE + "/database",
    "{scheme}:/user:{password}@host/database",
    "{scheme}:user:{password}@host://database",
    "user:{password}@host/database",
    "oracle://user:{password}@host/database",
    "{scheme}+nosuchdriver://user:{password}@host/database",
]


async def opened(url: str) -> None:
    await threadkeep.open_checkpointer(url).__aenter__()


async def opened_postgres(url: str) -> None:
    await PostgresCheckpointer(url).__aenter__()


async def opened_mysql(url: str) -> None:
    await MySQLCheckpointer(url).__aenter__()


OPENERS: list[tuple[str, Callable[[str], Any]]] = [
    ("postgresql", opened_postgres),
    ("mysql", opened_mysql),
    ("postgresql", opened),
    ("mariadb", opened),
    ("postgresql", threadkeep.upgrade),
    ("mysql", threadkeep.upgrade),
]


async def text_of_failure(open_it: Callable[[str], Any], url: str) -> str:
    """All that is raised would show in a log: the errors with their causes, as text and as repr."""
    try:
        await open_it(url)
    except Exception as error:
        shown = traceback.format_exception(error)
        link: BaseException | None = error
        while link is not None:
            shown += [str(link), repr(link), repr(getattr(link, "orig", None))]
            link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
        return "\n".join(shown)
    raise AssertionError("it was opened")


@pytest.mark.parametrize("pattern", URLS)
@pytest.mark.parametrize(("scheme", "open_it"), OPENERS)
async def test_a_url_that_leads_nowhere(scheme: str, open_it: Callable[[str], Any], pattern: str) -> None:
    text = await text_of_failure(open_it, pattern.format(scheme=scheme, password=PASSWORD))
    assert PASSWORD not in text


@pytest.mark.parametrize("kind", SERVERS)
async def test_a_server_that_refuses_the_password(kind: str) -> None:
    url = make_url(server_url(kind)).set(username="nobody_of_this_name", password=PASSWORD)
    for open_it in (opened, threadkeep.upgrade):
        text = await text_of_failure(open_it, url.render_as_string(hide_password=False))
        assert PASSWORD not in text
        assert "nobody_of_this_name" in text  # it was the server that spoke


@pytest.mark.parametrize("scheme", ["postgresql", "mysql"])
def test_a_checkpointer_does_not_show_it_either(scheme: str) -> None:
    url = f"{scheme}://user:{PASSWORD}@host/database"
    assert PASSWORD not in repr(threadkeep.open_checkpointer(url))
