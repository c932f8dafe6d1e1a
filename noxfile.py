"""Every check that CI runs, each in an environment of its own: `nox -l` lists them, `nox -s NAME` runs one.

What follows `--` goes to pytest: `nox -s tests -- -k fork -x`.
"""

import re
import tempfile
from pathlib import Path

import nox

nox.options.sessions = ["lint", "types", "tests"]
nox.options.reuse_venv = "yes"
nox.options.default_venv_backend = "venv"  # Python's own, as the README's, so that CI can give a session that one

PROJECT = nox.project.load_toml("pyproject.toml")["project"]
BACKENDS = ["memory", "sqlite", "postgresql", "mysql", "mariadb"]
SERVERS = {"postgresql", "mysql", "mariadb"}


def tools(*names: str) -> list[str]:
    """These tools with the bounds that the extra `dev` gives them, for sessions that need no more of it."""
    return [line for line in PROJECT["optional-dependencies"]["dev"] if line.split(">=")[0] in names]


AGENT = Path("examples/cubeloop_agent.py")  # needs cubeloop, which only its own session installs


@nox.session
def lint(session: nox.Session) -> None:
    """Style, and which module may import which."""
    session.install(*tools("ruff", "import-linter"))
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("lint-imports", "--no-cache", env={"PYTHONPATH": "src"})


@nox.session
def types(session: nox.Session) -> None:
    """mypy, strict, on the library and its tests."""
    session.install("-e", ".[dev]")
    session.run("mypy")


@nox.session
def tests(session: nox.Session) -> None:
    """The whole suite, on every server that can be had."""
    session.install("-e", ".[dev]")
    session.run("pytest", *session.posargs)


def tests_on(backend: str) -> None:
    @nox.session(name=f"tests-{backend}")
    def tests_on_backend(session: nox.Session) -> None:
        session.install("-e", ".[dev]")
        # A session that asks for a server does not pass by skipping it.
        required = {"THREADKEEP_REQUIRE": backend} if backend in SERVERS else {}
        session.run("pytest", "-k", backend, *session.posargs, env=required)


for backend in BACKENDS:
    tests_on(backend)


@nox.session
def migrations(session: nox.Session) -> None:
    """Old databases come up to the newest schema, by every way in."""
    session.install("-e", ".[dev]")
    session.run("pytest", "tests/migrations", *session.posargs)


@nox.session
def stress(session: nox.Session) -> None:
    """The races, twenty times as long, and property tests with more examples."""
    session.install("-e", ".[dev]")
    more = {"THREADKEEP_STRESS": "20", "HYPOTHESIS_PROFILE": "stress"}
    # Crashes have a session of their own.
    session.run("pytest", "-m", "stress", "--ignore=tests/crash", "--timeout=3600", *session.posargs, env=more)


@nox.session
def crash(session: nox.Session) -> None:
    """Workers killed at 200 moments on every server, paused and raced. What became of them is printed at the end."""
    session.install("-e", ".[dev]")
    more = {"THREADKEEP_STRESS": "25"}
    session.run("pytest", "tests/crash", "-rP", "--timeout=3600", *session.posargs, env=more)


@nox.session(name="benchmark-upgrade")
def benchmark_upgrade(session: nox.Session) -> None:
    """The upgrade of a large v3 database: time, locks, memory. `-- --messages 20000` is a quick look."""
    session.install("-e", ".[dev]")
    session.run("python", "benchmarks/upgrade_v3.py", *session.posargs, env={"PYTHONPATH": "tests"})


@nox.session(name="benchmark-context")
def benchmark_context(session: nox.Session) -> None:
    """The context window of a long thread, beside a short thread. `-- --messages 2000` is a quick look."""
    session.install("-e", ".[dev]")
    session.run("python", "benchmarks/context_window.py", *session.posargs, env={"PYTHONPATH": "tests"})


PEERS = [
    "cubepi[sqlite,postgres,mysql]==0.13.6",
    "pymysql<1.2",  # aiomysql, which cubepi uses, does not work with later releases
    "openai-agents[sqlalchemy]>=0.24,<0.25",
    "langgraph-checkpoint-sqlite>=3.1,<4",
    "langgraph-checkpoint-postgres>=3.2,<4",
    "psycopg[binary,pool]>=3.3,<4",
]
PLOTTING = "matplotlib>=3.9,<4"


@nox.session
def benchmark(session: nox.Session) -> None:
    """Threadkeep beside its peers and beside the bare drivers. `-- --rounds 1 --scale 0.02` is a quick look."""
    session.install("-e", ".[dev]", PLOTTING, *PEERS)
    session.run("python", "benchmarks/compare.py", *session.posargs, env={"PYTHONPATH": "tests"})


@nox.session(name="benchmark-growth")
def benchmark_growth(session: nox.Session) -> None:
    """What operations cost as threads get long and many."""
    session.install("-e", ".[dev]", PLOTTING)
    session.run("python", "benchmarks/growth.py", *session.posargs, env={"PYTHONPATH": "tests"})


@nox.session(name="benchmark-memory")
def benchmark_memory(session: nox.Session) -> None:
    """The memory that long appends and loads take. `-- --messages 2000` is a quick look."""
    session.install("-e", ".[dev]")
    session.run("python", "benchmarks/memory.py", *session.posargs, env={"PYTHONPATH": "tests"})


@nox.session
def oldest(session: nox.Session) -> None:
    """The whole suite with the oldest release of everything that users install beside us."""
    extras = PROJECT["optional-dependencies"]
    bounds = PROJECT["dependencies"] + [line for extra in extras if extra != "dev" for line in extras[extra]]
    oldest = [re.sub(r">=([^,]+).*", r"==\1", bound) for bound in bounds if ">=" in bound]
    session.install("-e", ".[dev]", *oldest)
    session.run("pytest", *session.posargs)


@nox.session
def cubeloop(session: nox.Session) -> None:
    """A real agent framework, with its own message classes, on our four backends."""
    session.install("-e", ".[dev]", "cubeloop>=0.15,<0.16")
    session.run("pytest", "tests/with_cubeloop", *session.posargs)
    session.run("python", AGENT)


OLD_RELEASES = ["cubepi==0.7.0", "cubepi==0.12.0", "cubepi==0.13.6", "cubeloop==0.15.3"]


@nox.session
def cubepi(session: nox.Session) -> None:
    """Databases that the real old releases wrote come over whole, and no old worker writes into them any more.

    All of them, or those that are named: `nox -s cubepi -- cubepi==0.7.0`.
    """
    session.install("-e", ".[dev]")
    named = [argument for argument in session.posargs if argument in OLD_RELEASES]
    others = [argument for argument in session.posargs if argument not in OLD_RELEASES]
    pythons = []
    for name, version in (release.split("==") for release in named or OLD_RELEASES):
        folder = Path(session.create_tmp(), f"{name}-{version}")
        session.run("python", "-m", "venv", folder)
        python = folder / "bin" / "python"
        # aiomysql, which they use, does not work with later releases of PyMySQL.
        wanted = [f"{name}[sqlite,postgres,mysql]=={version}", "pymysql<1.2"]
        session.run(python, "-m", "pip", "install", "--quiet", *wanted, external=True)
        pythons.append(f"{folder.name}={python}")
    session.run("pytest", "tests/with_cubepi", *others, env={"THREADKEEP_OLD_RELEASES": " ".join(pythons)})


@nox.session
def examples(session: nox.Session) -> None:
    """Every example runs."""
    session.install("-e", ".[dev]")
    for script in sorted(set(Path("examples").glob("*.py")) - {AGENT}):
        session.run(*(["pytest"] if script.name.startswith("test_") else ["python"]), script)


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation builds, and no link in it is broken."""
    session.install(*tools("mkdocs-material"))
    session.run("mkdocs", "build", "--strict", "--site-dir", session.create_tmp())


USE_THE_WHEEL = """
import asyncio, importlib.metadata, importlib.resources, sqlite3, threadkeep

package = importlib.resources.files(threadkeep)
assert "site-packages" in str(package), package
assert package.joinpath("py.typed").is_file()
assert [f for f in package.joinpath("migrations", "versions").iterdir() if f.name.startswith("v")]
assert importlib.metadata.version("threadkeep") == {version!r}

asyncio.run(threadkeep.upgrade("sqlite:///empty.db"))
print("schema", *sqlite3.connect("empty.db").execute("SELECT * FROM cubepi_schema_version").fetchone())
"""


@nox.session
def package(session: nox.Session) -> None:
    """The wheel, installed far from this repository and without extras, makes a database."""
    session.install("build>=1.2,<2")
    with tempfile.TemporaryDirectory() as folder:
        session.run("python", "-m", "build", "--outdir", folder)
        session.run("python", "-m", "venv", f"{folder}/venv")
        python = f"{folder}/venv/bin/python"
        session.run(python, "-m", "pip", "install", *Path(folder).glob("*.whl"), external=True)
        with session.chdir(folder):
            script = USE_THE_WHEEL.format(version=PROJECT["version"])
            session.run(python, "-W", "error", "-c", script, external=True)
