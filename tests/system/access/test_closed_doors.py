"""Calls between brokers are refused to clients, at the client listener and without proof."""

from __future__ import annotations

import msgspec
import pytest

from isolog.errors import InvalidRequest, IsologError, Unauthenticated
from spark_stream.broker.scripting.driver import REMOTE_STEPS
from spark_stream.broker.scripting.peers import RunSteps, pack_steps
from spark_stream.consistency.transactions.transactions import Joined
from spark_stream.scripts.steps import RemoteStep
from spark_stream.transport.client import ClientChannel
from spark_stream.transport.streams import CallFailed, failure_of
from spark_stream.wire.messages import CLIENT_METHODS, PEER_METHODS, REPLICATE, RUN_STEPS
from spark_stream.wire.replication_messages import OpenReplication
from tests.broker.stamped import Owner, seen
from tests.support import NUMBERS, BrokerProcess, Channel, act

ESCAPE = "../../../escaped"
FORGED = "0" * 64


def refused(address: str, method: str, body: bytes = b"") -> IsologError:
    """Return the error of a refused stream."""
    channel = ClientChannel(address, timeout_s=20)
    with pytest.raises(CallFailed) as caught:
        channel.open(method, b"", body).receive(20)
    channel.close()
    return failure_of(caught.value, address)


@pytest.mark.quick("Seal", "WriteMarkers", "MakeFolder")
@pytest.mark.rule(
    "the proof that a caller or a server is a broker of this cluster", "broker/node/identity.py"
)
@pytest.mark.parametrize("kind", REMOTE_STEPS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("proof", ["", FORGED])
def test_client_cannot_run_a_step(
    shared: BrokerProcess,
    channel: Channel,
    log,
    topic: str,
    kind: type[RemoteStep],
    proof: str,
) -> None:
    log.create_topic(topic, schema=NUMBERS)
    owner = Owner(channel).begin()
    owner.put(topic, 2, 2)
    facts = act(channel, "describe-topic", topic=topic)
    before = sorted(shared.directory.rglob("*"))
    me = act(channel, "status")["broker_id"]
    values = {
        "at": Joined(topic, facts["id"], 0),
        "broker": me,
        "topic": ESCAPE,
        "topic_id": facts["id"],
        "transaction": owner.number,
        "producer_id": owner.producer,
        "entry": 1,
        "leader_epoch": 0,
        "least_epoch": 0,
        "taken": (owner.producer,),
    }
    step = kind(**{name: values[name] for name in kind.__struct_fields__})
    asked = RunSteps(caller=me, proof=proof, nonce="n", steps=pack_steps([step]))
    body = msgspec.msgpack.encode(asked)
    assert isinstance(refused(shared.peer_address, RUN_STEPS, body), Unauthenticated)
    assert "peer_listen" in str(refused(shared.address, RUN_STEPS, body).hint)
    assert sorted(shared.directory.rglob("*")) == before
    assert seen(channel, topic, "read_committed") == []
    owner.commit()
    assert seen(channel, topic, "read_committed") == [2, 3]


@pytest.mark.parametrize("proof", ["", FORGED])
def test_client_cannot_open_a_replication_stream(shared: BrokerProcess, proof: str) -> None:
    opened = OpenReplication(stream="s", follower="2", proof=proof, window_bytes=1 << 20)
    refusal = refused(shared.peer_address, REPLICATE, opened.to_bytes())
    assert isinstance(refusal, Unauthenticated)


@pytest.mark.rule("the listener of each method", "wire/messages.py")
@pytest.mark.parametrize("method", sorted(CLIENT_METHODS | PEER_METHODS))
def test_each_method_is_refused_at_the_other_listener(shared: BrokerProcess, method: str) -> None:
    wrong = shared.peer_address if method in CLIENT_METHODS else shared.address
    refusal = refused(wrong, method)
    assert isinstance(refusal, InvalidRequest)
    assert "listen" in str(refusal.hint)


def test_unknown_method_is_refused_at_both_listeners(shared: BrokerProcess) -> None:
    for address in (shared.address, shared.peer_address):
        assert "there is no method 'run'" in refused(address, "run").message


def test_answers_do_not_contain_the_instance_of_an_owner(channel: Channel) -> None:
    """With the instance a client could commit and abort as the owner."""
    owner = Owner(channel).begin()
    answers = (
        act(channel, "describe-transaction", transactional_id=owner.name),
        act(channel, "list-transactions"),
        act(channel, "renew-transaction", **owner.who, number=owner.number),
    )
    assert all(owner.instance not in str(each) for each in answers)
    owner.abort()
