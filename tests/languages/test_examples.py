"""examples/go and examples/java: records of one are read by the other and by the Python client."""

from __future__ import annotations

import datetime as dt
import functools
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import isolog
from isolog.testing import LocalCluster
from tests.certificates import HERE, Files, conf_of
from tests.conftest import ROOT
from tests.flight_calls import SERVED, flight_address
from tests.secure_brokers import PASSWORD, asking_broker, client_of
from tests.system.replication.clusters import CONF, await_in_sync, restore

EXAMPLES = ROOT / "examples"
CACHE = ROOT / ".cache"
LANGUAGES = ("go", "java")
PARTITIONS = 6
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("customer", pa.string()),
        ("amount", pa.decimal128(10, 2)),
        ("at", pa.timestamp("us", "UTC")),
    ]
)
LEVELS = ("read_uncommitted", "read_replicated", "read_committed", "read_atomic")
RUN_S = 120.0

pytestmark = [pytest.mark.full, pytest.mark.slow, pytest.mark.timeout(900)]


# -- building --------------------------------------------------------------------------------------


def build(words: Sequence[str | Path], folder: Path, **settings: str) -> tuple[bool, str]:
    """Whether the command succeeded, and its output."""
    done = subprocess.run(
        words,
        cwd=folder,
        env=os.environ | settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    return done.returncode == 0, done.stdout


GO = {
    "GOMODCACHE": str(CACHE / "go" / "mod"),
    "GOCACHE": str(CACHE / "go" / "build"),
    "GOFLAGS": "-mod=readonly -modcacherw",
    "GOTOOLCHAIN": "local",
}
MAVEN = {"MAVEN_OPTS": f"-Dmaven.repo.local={CACHE / 'maven'}"}


def build_go(folder: Path) -> list[str]:
    go = shutil.which("go")
    if go is None:
        pytest.skip("there is no go")
    source = EXAMPLES / "go"
    loaded, printed = build([go, "mod", "download"], source, **GO)
    if not loaded:
        pytest.skip(f"Go cannot get the modules of examples/go: {printed}")
    for words in (["vet", "."], ["build", "-o", str(folder / "orders"), "."]):
        built, printed = build([go, *words], source, **GO)
        assert built, printed
    return [str(folder / "orders")]


def build_java(folder: Path) -> list[str]:
    maven, java = shutil.which("mvn"), shutil.which("java")
    if maven is None or java is None:
        pytest.skip("there is no mvn, or no java")
    source = folder / "java"
    shutil.copytree(EXAMPLES / "java", source, ignore=shutil.ignore_patterns("target"))
    built, printed = build([maven, "-B", "package"], source, **MAVEN)
    if not built and "Could not " in printed and "COMPILATION ERROR" not in printed:
        pytest.skip(f"Maven cannot get the packages of examples/java: {printed[-2000:]}")
    assert built, printed
    home = os.environ.get("JAVA_HOME")
    quick = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]  # it runs for a second
    program = str(source / "target" / "orders.jar")
    return [f"{home}/bin/java" if home else java, *quick, "-jar", program]


BUILDS = {"go": build_go, "java": build_java}


@dataclass(frozen=True)
class Program:
    """A built example, and the brokers of its requests."""

    words: list[str]
    brokers: str
    settings: dict[str, str]

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.words, self.brokers, *arguments],
            env=os.environ | self.settings,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    def run(self, *arguments: str, given: str = "", code: int = 0) -> str:
        """Run it. Return its output, or its standard error if it must fail."""
        with self.start(*arguments, stdin=subprocess.PIPE) as process:
            out, errors = process.communicate(given, RUN_S)
        assert process.returncode == code, errors
        return errors if code else out

    def write(self, topic: str, orders: Sequence[dict[str, Any]]) -> None:
        lines = [json.dumps(each, default=to_text) for each in orders]
        self.run("write", topic, given="\n".join(lines))

    def read(self, topic: str, isolation: str) -> list[dict[str, Any]]:
        return [parsed(line) for line in self.run("read", topic, isolation).splitlines()]


def to_text(value: Decimal | dt.datetime) -> str:
    """Python's JSON has neither decimals nor times."""
    return value.isoformat() if isinstance(value, dt.datetime) else str(value)


def parsed(line: str) -> dict[str, Any]:
    """An order from the output of a program, with its time as a time."""
    found: dict[str, Any] = json.loads(line, parse_float=Decimal)
    at = found["at"]
    return found | {"at": None if at is None else dt.datetime.fromisoformat(at)}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3, conf=CONF | {"flight_listen": "127.0.0.1:0"}) as brokers:
        yield brokers


@pytest.fixture(scope="module")
def words_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[str]]:
    """Return the command of the example in a language. Skip the test if it cannot be built."""
    return functools.cache(lambda language: BUILDS[language](tmp_path_factory.mktemp(language)))


@pytest.fixture
def program(
    cluster: LocalCluster, words_of: Callable[[str], list[str]]
) -> Callable[[str], Program]:
    restore(cluster)
    brokers = ",".join(flight_address(each.address) for each in cluster.brokers.values())
    return lambda language: Program(words_of(language), brokers, {})


@pytest.fixture
def log(cluster: LocalCluster) -> Iterator[isolog.Log]:
    with cluster.connect() as connected:
        yield connected


# -- their behaviour -------------------------------------------------------------------------------


def orders(count: int) -> list[dict[str, Any]]:
    """Rows with the smallest and the greatest values, and nulls in every column that takes them."""
    first = dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC)
    amounts = [None, Decimal("0.00"), Decimal("-99999999.99"), Decimal("99999999.99")]
    customers = [None, "", "Zoë", '"quoted"\n', "客户"]
    return [
        {
            "id": number - 1 if number else -(2**63),
            "customer": customers[number % 5],
            "amount": amounts[number % 4],
            "at": None if number % 7 == 3 else first + dt.timedelta(hours=number),
        }
        for number in range(count)
    ]


def table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, SCHEMA)


def ordered(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The orders alone, sorted."""
    plain = [{name: row[name] for name in SCHEMA.names} for row in rows]
    return sorted(plain, key=lambda row: row["id"])


@pytest.mark.parametrize(("writer", "reader"), [("go", "java"), ("java", "go")])
def test_records_of_one_language_are_read_by_the_others(
    writer: str, reader: str, program: Callable[[str], Program], log: isolog.Log
) -> None:
    topic = f"from-{writer}"
    writing, reading = program(writer), program(reader)
    writing.run("create", topic, str(PARTITIONS))
    described = log.describe(topic)
    assert len(described.partitions) == PARTITIONS
    assert {each.leader for each in described.partitions} == {"1", "2", "3"}
    assert log.read(topic).select(SCHEMA.names).schema.equals(SCHEMA)
    rows = orders(50)
    writing.write(topic, rows)
    assert f"{topic}: 50 records in {PARTITIONS} partitions" in reading.run("list")
    for level in LEVELS:
        found = reading.read(topic, level)
        assert ordered(found) == ordered(rows)
        for number in range(PARTITIONS):
            offsets = [row["offset"] for row in found if row["partition"] == number]
            assert offsets == list(range(len(offsets)))
            assert offsets
        assert ordered(log.read(topic, isolation=level).to_pylist()) == ordered(rows)
    printed = reading.run("read", topic)
    assert printed == writing.run("read", topic)
    reading.run("create", f"{topic}-copy", "3")
    reading.run("write", f"{topic}-copy", given=printed)
    assert ordered(log.read(f"{topic}-copy").to_pylist()) == ordered(rows)


@pytest.mark.parametrize("language", LANGUAGES)
def test_each_isolation_level_sees_its_records(
    language: str, program: Callable[[str], Program], log: isolog.Log
) -> None:
    topic = f"levels-{language}"
    reading = program(language)
    reading.run("create", topic, "2")
    rows = orders(6)

    def seen() -> list[int]:
        return [len(reading.read(topic, level)) for level in LEVELS]

    with log.producer(transactional_id=f"loader-{language}", isolation="read_committed") as writer:
        writer.begin_transaction()
        writer.append(topic, table(rows[:2]), partition=0)
        writer.append(topic, table(rows[2:3]), partition=1)
        writer.flush()
        assert seen() == [3, 3, 0, 0]
        writer.abort_transaction()
        assert seen() == [3, 3, 0, 0]
        writer.begin_transaction()
        writer.append(topic, table(rows[3:]), partition=1)
        writer.flush()
        assert seen() == [6, 6, 0, 0]
        writer.commit_transaction()
    assert seen() == [6, 6, 3, 3]
    assert [row["offset"] for row in reading.read(topic, "read_committed")] == [1, 2, 3]


@pytest.mark.parametrize("language", LANGUAGES)
def test_reader_and_writer_follow_a_new_leader(
    language: str, program: Callable[[str], Program], cluster: LocalCluster, log: isolog.Log
) -> None:
    """The leader is killed while the reader is within a partition. The test only waits."""
    topic = f"moved-{language}"
    running = program(language)
    running.run("create", topic, "2")
    count, batches = 10_000, 30
    with log.producer(isolation="read_committed") as writer:
        for batch in range(batches):
            ids = pa.array(range(batch * count, (batch + 1) * count), pa.int64())
            customers = pa.array(["c" * 100] * count)
            rest = [pa.nulls(count, SCHEMA.field(name).type) for name in ("amount", "at")]
            writer.append(topic, pa.table([ids, customers, *rest], schema=SCHEMA), partition=0)
    await_in_sync(log, topic)
    with running.start("read", topic) as reader:
        assert reader.stdout is not None
        assert reader.stderr is not None
        first = reader.stdout.readline()
        cluster.kill(cluster.leader(topic, 0))
        running.write(
            topic, [{"id": count * batches, "customer": None, "amount": None, "at": None}]
        )
        lines = [first, *reader.stdout]
        errors = reader.stderr.read()
        assert reader.wait(RUN_S) == 0, errors
    assert "trying again" in errors
    found = [parsed(line)["id"] for line in lines]
    assert found[: count * batches] == list(range(count * batches))
    assert found[count * batches :] in ([], [count * batches])
    last = running.read(topic, "read_committed")
    assert [row["id"] for row in last] == list(range(count * batches + 1))


def test_commands_of_the_page_run(program: Callable[[str], Program], tmp_path: Path) -> None:
    go, java = map(program, LANGUAGES)  # both can be built
    assert go.brokers == java.brokers
    page = (ROOT / "docs" / "flight.md").read_text().partition("## Go and Java")[2]
    commands = page.partition("```sh\n")[2].partition("```")[0]
    shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=shutil.ignore_patterns("target"))
    script = re.sub(r"^brokers=\S+", f"brokers={go.brokers}", commands)
    assert script != commands
    ran, printed = build(["bash", "-e", "-c", script], tmp_path, **GO, **MAVEN)
    assert ran, printed
    assert "orders: 1 records in 6 partitions" in printed
    assert '"customer":"ada","amount":12.50,"at":"2026-01-01T12:00:00Z"}' in printed


@pytest.mark.parametrize("language", LANGUAGES)
def test_errors_have_code_and_hint(
    language: str, program: Callable[[str], Program], log: isolog.Log
) -> None:
    running = program(language)
    topic = f"errors-{language}"
    log.create_topic(topic)
    said = running.run("read", f"{topic}-2", code=1)
    assert said.startswith(f"orders: [UNKNOWN_TOPIC] there is no topic '{topic}-2'")
    assert said.count("\n") == 1
    assert "[TOPIC_EXISTS]" in running.run("create", topic, "1", code=1)
    assert "isolation" in running.run("read", topic, "read_all", code=1)
    assert "id" in running.run("read", topic, code=1)  # not a column of this topic
    for wrong in ('{"id": 1, "amount": 0.001}', '{"id": "x"}', "{}", '{"id": 1, "at": "noon"}'):
        assert "order 1" in running.run("write", topic, given=wrong, code=1)
    refused = running.run("write", topic, given='{"id": 1}', code=1)
    assert "[SCHEMA_MISMATCH]" in refused
    for usage in (["read"], ["create", topic, "many"], ["remove", topic]):
        assert "usage: orders BROKERS COMMAND" in running.run(*usage, code=2)
    assert log.read(topic).num_rows == 0


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_example_works_with_tls_and_a_password_or_a_token(
    language: str, words_of: Callable[[str], list[str]], tmp_path: Path
) -> None:
    files = Files(tmp_path)
    root = {"user": "root", "password": PASSWORD}
    words = words_of(language)
    with (
        asking_broker(tmp_path, SERVED + conf_of(files.issue("broker", *HERE))) as broker,
        isolog.connect(broker.address, tls_ca=files.ca, **root) as log,
    ):
        secure = {"ISOLOG_TLS_CA": files.ca}
        password = secure | {"ISOLOG_USER": "root", "ISOLOG_PASSWORD": PASSWORD}
        running = Program(words, log.status().flight, password)
        running.run("create", "orders", "2")
        rows = orders(4)
        running.write("orders", rows)
        with client_of(broker, **root, **{"tls.ca": files.ca}) as access:
            token = secure | {"ISOLOG_TOKEN": access.create_token("root").token}
        found = Program(words, running.brokers, token).read("orders", "read_committed")
        assert ordered(found) == ordered(rows)
        wrong = Program(words, running.brokers, secure | {"ISOLOG_TOKEN": "isolog_wrong"})
        assert "[UNAUTHENTICATED]" in wrong.run("list", code=1)
        nobody = Program(words, running.brokers, secure)
        assert "[UNAUTHENTICATED]" in nobody.run("list", code=1)
