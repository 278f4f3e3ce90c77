"""``isolog topic``, and the errors of all commands for invalid arguments."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import run


def test_unknown_topic_hints_at_topic_list(served):
    for command in (["delete", "nope", "--yes"], ["alter", "nope", "--partitions", "2"]):
        refused = served.run("topic", *command)
        assert refused.code == 1
        assert "there is no topic 'nope'" in refused.err
        assert "`isolog topic list` shows the existing topics" in refused.err
        assert "sink" not in refused.err


def test_a_topic_from_create_to_delete(served, call, monkeypatch):
    monkeypatch.setenv("ISOLOG_BOOTSTRAP", served.bootstrap)
    made = served.run(
        "topic",
        "create",
        "flights",
        "--partitions",
        "2",
        "--config",
        "compression=zstd",
        "--schema",
        "id bigint NOT NULL, tags array<string>",
    )
    assert (made.code, made.out) == (0, "")
    assert "created topic flights: 2 partitions" in made.err

    assert served.run("topic", "list").out == "flights\n"
    assert json.loads(call("topic", "list", "--output", "json").out) == ["flights"]

    facts = json.loads(call("topic", "describe", "flights", "--output", "json").out)
    assert facts["schema"] == "id bigint NOT NULL, tags array<string>"
    assert facts["config"]["compression"] == "zstd"
    assert [each["partition"] for each in facts["partitions"]] == [0, 1]
    partition = facts["partitions"][0]
    assert partition["log_end_offset"] == partition["high_watermark"] == 0
    assert partition["last_stable_offset"] == partition["open_transactions"] == 0
    shown = call("topic", "describe", "flights").out
    words = ("array<string>", "compression", "LEO", "HW", "LSO", "open transactions")
    for word in (*words, partition["leader"]):
        assert word in shown

    unsure = served.run("topic", "delete", "flights")
    assert (unsure.code, unsure.out) == (2, "")
    assert "--yes" in unsure.err
    assert call("topic", "delete", "flights", "--yes").code == 0
    assert served.log.topics() == []


def test_a_topics_schema_is_altered_and_shown(served, call, monkeypatch):
    monkeypatch.setenv("ISOLOG_BOOTSTRAP", served.bootstrap)
    served.run("topic", "create", "wider", "--schema", "id int NOT NULL, tags array<int>")
    assert "altered" not in call("topic", "describe", "wider").out
    schema = "id bigint, tags array<bigint>, remark string"
    more = call("topic", "alter", "wider", "--schema", schema)
    assert (more.code, more.out) == (0, "")
    assert more.err == f"altered topic wider: 1 partition, {schema}\n"
    facts = json.loads(call("topic", "describe", "wider", "--output", "json").out)
    assert (facts["schema"], facts["schema_version"]) == (schema, 1)
    shown = call("topic", "describe", "wider").out
    assert "schema altered 1 time" in shown
    assert "remark" in shown
    for bad, said in (
        ("id bigint, remark string", "column 'tags' (array<bigint>): a column of a topic cannot"),
        ("id int, tags array<bigint>, remark string", "column 'id' from bigint to int"),
        (schema, "has this schema already"),
        ("id bigint, tags array<bigint", "tags"),
    ):
        refused = call("topic", "alter", "wider", "--schema", bad)
        assert refused.code in (1, 2)
        assert said in refused.err
    assert json.loads(call("topic", "describe", "wider", "--output", "json").out) == facts


def test_add_column_keeps_the_other_columns(served, call):
    where = ("--bootstrap", served.bootstrap)
    served.log.create_topic("grows", schema="id bigint, name string")
    added = call(
        "topic", "alter", "grows", *where, "--add-column", "at timestamp", "--add-column", "x int"
    )
    assert (added.code, added.out) == (0, "")
    described = served.log.describe("grows").schema
    assert described.names == ["id", "name", "at", "x"]
    again = call("topic", "alter", "grows", *where, "--add-column", "x int")
    assert again.code != 0
    assert "x" in again.err
    both = call("topic", "alter", "grows", *where, "--add-column", "y int", "--schema", "y int")
    assert both.code == 2
    assert "exclude each other" in both.err
    assert served.log.describe("grows").schema.equals(described)


def test_alter_changes_partitions_and_settings(served, call, monkeypatch):
    monkeypatch.setenv("ISOLOG_BOOTSTRAP", served.bootstrap)
    served.log.create_topic("growing")
    more = call("topic", "alter", "growing", "--partitions", "3", "--config", "retention.ms=60000")
    assert (more.code, more.out) == (0, "")
    assert more.err == "altered topic growing: 3 partitions, retention.ms=60000\n"
    held = call("topic", "alter", "growing", "--config", "local.retention.ms=60000")
    assert held.code == 0
    assert "\nwarning: topic 'growing' has local.retention.*, and no lake has the topic" in held.err
    found = served.log.describe("growing")
    assert (len(found.partitions), found.config["retention.ms"]) == (3, "60000")
    fewer = call("topic", "alter", "growing", "--partitions", "2")
    assert (fewer.code, fewer.err.count("\n")) == (1, 1)
    assert "has 3 partitions and cannot have fewer" in fewer.err


def test_if_not_exists_leaves_a_topic_unchanged_and_prints_differences(served, call, monkeypatch):
    monkeypatch.setenv("ISOLOG_BOOTSTRAP", served.bootstrap)
    create = ("topic", "create", "twice", "--schema", "id bigint", "--if-not-exists")
    assert call(*create).err == "created topic twice: 1 partition\n"
    again = call(*create)
    assert (again.code, again.err) == (0, "topic twice exists: 1 partition\n")
    others = ("--partitions", "8", "--config", "compression=zstd")
    other = call("topic", "create", "twice", "--schema", "id int", "--if-not-exists", *others)
    assert other.code == 0
    assert other.err.splitlines() == [
        "topic twice exists: 1 partition",
        "not 8 partitions: add some with `isolog topic alter twice --partitions 8`",
        "its columns differ: id bigint",
        "compression is none, not zstd: change it with"
        " `isolog topic alter twice --config compression=zstd`",
    ]
    refused = call("topic", "create", "twice")
    assert (refused.code, refused.err.count("\n")) == (1, 1)


@pytest.mark.rule("exit codes and error lines of the command line", "cli/app.py")
@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        (["describe", "nope"], 1, "nope"),
        (["alter", "nope", "--partitions", "2"], 1, "nope"),
        (["alter", "nope"], 2, "--partitions N"),
        (["create", "t", "--schema", "id itn"], 2, "column 'id'"),
        (
            ["create", "t", "--schema", "a int, A string"],
            2,
            "'a' and 'A' are equal, ignoring case",
        ),
        (["create", "t", "--partitions", "0"], 1, "partitions, not 0"),
        (["create", "t", "--partitions", "-1"], 1, "partitions, not -1"),
        (["create", "t", "--config", "compression"], 2, "NAME=VALUE"),
        (["create", "t", "--config", "compresion=zstd"], 1, "did you mean 'compression'"),
    ],
)
def test_invalid_topic_commands_are_refused(served, call, arguments, code, problem):
    refused = call("topic", *arguments, "--bootstrap", served.bootstrap)
    assert (refused.code, refused.out) == (code, "")
    assert refused.err.startswith("error: ")
    assert refused.err.count("\n") == 1
    assert problem in refused.err


@pytest.mark.parametrize(
    ("variables", "options"),
    [
        ({}, []),
        ({}, ["--bootstrap", "localhost:1", "--path", "log"]),
        ({"ISOLOG_BOOTSTRAP": "localhost:1", "ISOLOG_PATH": "log"}, []),
        ({}, ["--bootstrap", "nowhere"]),
    ],
)
def test_exactly_one_location_of_the_log_is_required(call, monkeypatch, variables, options):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    refused = call("topic", "list", *options)
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith("error: ")


def test_value_of_a_wrong_type_names_the_accepted_values(call):
    refused = call("topic", "create", "t", "--path", "log", "--partitions", "x")
    assert refused.code == 2
    assert "takes a whole number, not 'x'" in refused.err


LOOKING = [
    ["topic", "list"],
    ["topic", "describe", "t"],
    ["topic", "delete", "t", "--yes"],
    ["topic", "alter", "t", "--partitions", "2"],
    ["consume", "t"],
    ["consume", "t", "--follow"],
    ["produce", "t"],
    ["transactions", "list"],
    ["transactions", "describe", "id"],
    ["transactions", "abort", "id"],
    ["broker", "status"],
    ["lake", "list"],
    ["lake", "status", "l"],
    ["lake", "run", "l"],
    ["sql", "SELECT 1"],
]


@pytest.mark.parametrize("command", LOOKING, ids=" ".join)
@pytest.mark.parametrize("place", ["missing", "empty"])
def test_read_only_commands_create_no_log_and_start_no_broker(call, tmp_path, command, place):
    (tmp_path / "empty").mkdir()
    refused = call(*command, "--path", str(tmp_path / place))
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.count("\n") == 1
    assert f"{tmp_path / place}" in refused.err
    assert [each.name for each in tmp_path.rglob("*")] == ["empty"]


@pytest.mark.parametrize("command", [*LOOKING, ["topic", "create", "t"]], ids=" ".join)
def test_an_empty_path_is_not_the_working_directory(call, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    refused = call(*command, "--path", "")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith("error: --path (or --dir) is empty")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (["topic", "elect", ""], "'' is not a topic name"),
        (["topic", "move", "", "0", "1"], "'' is not a topic name"),
        (["topic", "cancel-moves", ""], "'' is not a topic name"),
        (["cluster", "decommission", "", "--yes"], "there is no broker ''"),
        (["cluster", "recommission", ""], "there is no broker ''"),
        (["transactions", "describe", ""], "there is no transactional id ''"),
        (["transactions", "abort", ""], "there is no transactional id ''"),
    ],
)
def test_empty_names_are_refused(served, call, command, problem):
    refused = call(*command, "--bootstrap", served.bootstrap)
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.startswith(f"error: {problem}")
    assert refused.err.count("\n") == 1


def test_usage_errors_of_typer_have_exit_code_2(call):
    unknown = call("topic", "explode")
    assert (unknown.code, unknown.out) == (2, "")
    assert "No such command 'explode'" in unknown.err
    option = call("consume", "t", "--form", "x")
    assert option.code == 2
    assert "--form" in option.err
    helped = run("--help")
    assert (helped.code, helped.err) == (0, "")
    for word in ("broker", "topic", "transactions", "produce", "consume"):
        assert word in helped.out


def test_a_topic_is_trimmed_after_a_dry_run(served, call, monkeypatch):
    monkeypatch.setenv("ISOLOG_BOOTSTRAP", served.bootstrap)
    call("topic", "create", "trimmed", "--partitions", "2")
    with served.log.producer() as producer:
        for number in range(20):
            producer.send("trimmed", b"%d" % number, partition=number % 2)
    dry = call("topic", "trim", "trimmed", "--before", "4", "--dry-run")
    assert dry.out == "trimmed/0: log start 0 -> 4\ntrimmed/1: log start 0 -> 4\n"
    assert dry.err == "8 records would be deleted\n"
    high = call("topic", "trim", "trimmed", "--before", "11", "--dry-run")
    assert (high.code, high.out) == (1, "")
    assert "above the last stable offset 10" in high.err
    unsure = call("topic", "trim", "trimmed", "--before", "4")
    assert unsure.code == 2
    assert "--yes" in unsure.err
    assert served.log.read("trimmed").num_rows == 20
    done = call("topic", "trim", "trimmed", "--before", "4", "--partition", "1", "--yes")
    assert (done.code, done.out, done.err) == (0, "", "trimmed/1 now starts at offset 4\n")
    assert served.log.read("trimmed").num_rows == 16
    for place, said in (
        ("11", "above the last stable offset 10"),
        ("-3", "--before takes an offset of at least 0"),
        ("soon", "--before takes latest, an offset or a time"),
        ("earliest", "--before takes latest, an offset or a time"),
    ):
        refused = call("topic", "trim", "trimmed", "--before", place, "--yes")
        assert refused.code != 0
        assert said in refused.err
    assert call("topic", "trim", "trimmed", "--before", "latest", "--yes").code == 0
    assert served.log.read("trimmed").num_rows == 0
