"""Transactions of Kafka's producers. They are isolog's transactions, with other numbers.

A producer of Kafka keeps its producer id and its epoch over all its transactions. In isolog each
transaction has another epoch. So the gateway translates: Kafka's producer id names the instance
that owns the transactional id, and Kafka's epoch is the first one of isolog in which this producer
may write. Sequences continue from there on, so the leaders recognise duplicates of any transaction.

The brokers have the decision, and the gateway that began a transaction has the positions that it
moves. Only the coordinator begins one, and only the gateway that began it commits it. If it ends
before, another one answers with ``UNKNOWN_PRODUCER_ID`` after it has aborted the transaction, and
the client begins another.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from spark_stream.consistency.partition.producers import EPOCH_MAX, SEQUENCE_MAX, Stamp
from spark_stream.errors import (
    ConsumerFenced,
    InvalidRequest,
    InvalidTransaction,
    IsologError,
    ProducerFenced,
    TransactionAborted,
    UnknownTopic,
    UnknownTransaction,
)
from spark_stream.kafka.calls import Answer, KafkaCall
from spark_stream.kafka.groups import committed, group_code, owners_of, positions_in
from spark_stream.kafka.memory.transactions import KafkaTransaction, instance_of
from spark_stream.kafka.reading import Place, numbers_by_topic, topic_of
from spark_stream.kafka.records.batches import Batch
from spark_stream.kafka.refusals import (
    AbortableFailure,
    KafkaCode,
    NotCoordinator,
    Refusal,
    code_of,
)
from spark_stream.wire.consumer_messages import CheckConsumer
from spark_stream.wire.limits import TRANSACTION_TIMEOUT_MS_MAX
from spark_stream.wire.transaction_messages import (
    AbortTransaction,
    BeginTransaction,
    Branch,
    CommitTransaction,
    DescribeTransaction,
    InitTransactions,
    ListTransactions,
    NewProducer,
    RenewTransaction,
    TransactionDescription,
)

_STATES: Final = {
    "empty": "Empty",
    "open": "Ongoing",
    "committing": "PrepareCommit",
    "aborting": "PrepareAbort",
    "committed": "CompleteCommit",
    "aborted": "CompleteAbort",
}
"""Kafka's names of the states of a transaction."""

COMMITTED: Final = ("committing", "committed")
"""The states of a transaction after the decision to commit it."""

_FIRST_WITH_FENCED: Final = 2
"""The version of the requests within a transaction with the code PRODUCER_FENCED."""

_FIRST_INIT_WITH_FENCED: Final = 4


def transaction_code(error: Exception, *, has_fenced: bool = True) -> KafkaCode:
    """Return the error code for an error in a request about a transaction.

    ``has_fenced``: the version of the request has the code PRODUCER_FENCED.
    """
    match error:
        case (
            AbortableFailure() | TransactionAborted() | InvalidTransaction() | UnknownTransaction()
        ):
            return KafkaCode.UNKNOWN_PRODUCER_ID  # the client aborts, and begins another
        case Refusal():
            return error.code
        case ProducerFenced():
            return KafkaCode.PRODUCER_FENCED if has_fenced else KafkaCode.INVALID_PRODUCER_EPOCH
        case InvalidRequest():
            return KafkaCode.INVALID_REQUEST
        case IsologError() if error.retriable:
            return KafkaCode.COORDINATOR_NOT_AVAILABLE
        case _:
            return code_of(error)


def _code(call: KafkaCall, error: Exception) -> int:
    return int(transaction_code(error, has_fenced=call.request.version >= _FIRST_WITH_FENCED))


# -- the life of a transaction ---------------------------------------------------------------------


def init_producer_id(call: KafkaCall) -> Answer:
    """Return the fields of the answer with a new producer id.

    With a transactional id, the producer takes the id over. The earlier one is fenced, and its open
    transaction aborts. A request with a producer id resets the sequences, and only the owner may
    send it. A retry after a lost answer gets the same answer.
    """
    fields, name = call.fields, call.fields["transactional_id"]
    timeout_ms = fields["transaction_timeout_ms"]
    if name is not None and not 0 < timeout_ms <= TRANSACTION_TIMEOUT_MS_MAX:
        return _without_id(KafkaCode.INVALID_TRANSACTION_TIMEOUT)
    try:
        if name is None:
            found = call.log._connection.call(NewProducer())
            return {"producer_id": found.producer_id, "producer_epoch": found.epoch}
        if fields["producer_id"] < 0:
            return _new_owner(call, name)
        known = call.transactions.of(name, fields["producer_id"])
        with known.lock:
            if known.successor is not None:
                _take_over(call, name, known.successor["producer_id"])  # unless it was fenced
            else:
                with suppress(UnknownTransaction):
                    _abort(call, known)
                known.successor = _new_owner(call, name)
            return known.successor
    except IsologError as error:
        has_fenced = call.request.version >= _FIRST_INIT_WITH_FENCED
        return _without_id(transaction_code(error, has_fenced=has_fenced))


def _new_owner(call: KafkaCall, name: str) -> dict[str, int]:
    """Return the fields of the answer for a new owner of a transactional id."""
    producer_id = call.log._connection.call(NewProducer()).producer_id
    # Kafka's epoch is the first one in isolog whose sequences belong to this producer.
    first = _take_over(call, name, producer_id).epoch + 1
    return {"producer_id": producer_id, "producer_epoch": first if first <= EPOCH_MAX else 0}


def _take_over(call: KafkaCall, name: str, producer_id: int) -> TransactionDescription:
    """Make a producer the owner of a transactional id. The owner keeps it."""
    own = {"transactional_id": name, "instance": instance_of(producer_id)}
    timeout_ms = call.fields["transaction_timeout_ms"]
    return call.log._connection.call(InitTransactions.of(**own, timeout_ms=timeout_ms))


def _without_id(code: KafkaCode) -> Answer:
    return {"error_code": int(code), "producer_id": -1, "producer_epoch": -1}


def add_partitions(call: KafkaCall) -> Answer:
    """Begin the transaction with its first partition. The brokers join partitions by the writes."""
    fields = call.fields
    topics = fields["v3_and_below_topics"]
    places = [(each["name"], number) for each in topics for number in each["partitions"]]
    codes: dict[Place, KafkaCode] = {}
    for place in places:
        try:
            topic_of(call.log, *place)
        except (IsologError, Refusal) as error:
            codes[place] = code_of(error)
    code = KafkaCode.OPERATION_NOT_ATTEMPTED if codes else KafkaCode.NONE
    if not codes:
        try:
            _begun(
                call,
                fields["v3_and_below_transactional_id"],
                fields["v3_and_below_producer_id"],
            )
        except (IsologError, Refusal) as error:
            code = KafkaCode(_code(call, error))
    return {
        "results_by_topic_v3_and_below": [
            {
                "name": each["name"],
                "results_by_partition": [
                    {
                        "partition_index": number,
                        "partition_error_code": int(codes.get((each["name"], number), code)),
                    }
                    for number in each["partitions"]
                ],
            }
            for each in topics
        ]
    }


def add_offsets(call: KafkaCall) -> Answer:
    """Begin the transaction if positions come before its first write."""
    fields = call.fields
    try:
        _begun(call, fields["transactional_id"], fields["producer_id"])
    except (IsologError, Refusal) as error:
        return {"error_code": _code(call, error)}
    return {}


def end(call: KafkaCall) -> Answer:
    """Commit or abort a transaction. A repeated request has the same answer."""
    fields = call.fields
    try:
        known = call.transactions.of(fields["transactional_id"], fields["producer_id"])
        with known.lock:
            if fields["committed"]:
                _commit(call, known)
            else:  # if the latest one was committed, the client's next one was not begun
                _abort(call, known)
    except (IsologError, Refusal) as error:
        return {"error_code": _code(call, error)}
    return {}


def _commit(call: KafkaCall, known: KafkaTransaction) -> None:
    """Commit a transaction. After an AbortableFailure it is aborted, and will not be committed."""
    if known.branch is not None and known.is_own:
        number, producer_id = known.branch.number, known.branch.producer_id
    else:
        found = _described(call, known)
        number, producer_id = found.number, found.producer_id
        if found.state not in COMMITTED and _abort(call, known):
            raise AbortableFailure("another gateway began the transaction, and has ended")
    commit = CommitTransaction.of(
        **known.own,
        number=number,
        branches=(producer_id,),
        positions=tuple(known.positions.values()),
        owners=dict(known.owners),
    )
    try:
        call.log._connection.call(commit)
    except (ConsumerFenced, UnknownTopic) as error:
        if _abort(call, known):
            raise AbortableFailure(f"the transaction was aborted: {error.message}") from error
        raise
    except (TransactionAborted, InvalidTransaction):
        if known.branch is None:
            raise
        known.end()
        _commit(call, known)  # the present one, which another gateway has begun
    known.end()


def _abort(call: KafkaCall, known: KafkaTransaction) -> bool:
    """Abort the latest transaction of a producer. Return False if it was committed before."""
    found = _described(call, known)
    abort = AbortTransaction.of(**known.own, number=max(0, found.number))
    try:
        call.log._connection.call(abort)
    except InvalidTransaction:
        return False
    except (TransactionAborted, UnknownTransaction):
        pass  # it has timed out, or was not begun
    known.end()
    return True


def _begun(call: KafkaCall, name: str, producer_id: int) -> KafkaTransaction:
    """Return the open transaction of a producer. Begin it if necessary.

    Raises:
        InvalidTransaction: Another gateway has begun it.
        NotCoordinator: This gateway should not begin it.
    """
    known = call.transactions.of(name, producer_id)
    with known.lock:
        found = _described(call, known)
        if not _is_present(known, found):
            _check_coordinator(call)
            begin = BeginTransaction.of(**known.own, after=found.number, retriable=False)
            known.open(call.log._connection.call(begin), is_own=True)
        return known


def _is_present(known: KafkaTransaction, found: TransactionDescription) -> bool:
    """Return whether this gateway began the present transaction: another one may have ended it."""
    branch = known.branch if known.is_own else None
    return branch is not None and (found.number, found.state) == (branch.number, "open")


def _check_coordinator(call: KafkaCall) -> None:
    """Check that this gateway is the coordinator. A client may have two in its cache."""
    if call.gateways.coordinator != call.gateways.own:
        raise NotCoordinator(f"the coordinator is {call.gateways.coordinator}")


def _described(call: KafkaCall, known: KafkaTransaction) -> TransactionDescription:
    request = DescribeTransaction.of(transactional_id=known.transactional_id)
    return call.log._connection.call(request)


# -- positions -------------------------------------------------------------------------------------


def txn_offset_commit(call: KafkaCall) -> Answer:
    """Add positions of a group to a transaction. They move with its commit."""
    fields = call.fields
    group, member = fields["group_id"], fields["member_id"]
    positions, codes = positions_in(call, group, fields["topics"])
    try:
        known = call.transactions.of(fields["transactional_id"], fields["producer_id"])
        with known.lock:
            if not _is_present(known, _described(call, known)):  # AddOffsetsToTxn comes before
                _check_coordinator(call)
                raise AbortableFailure("another gateway began the transaction")
            owners = owners_of(call, group, member, fields["generation_id"])
            _check_owner(call, group, owners.get(group))
            known.owners |= owners
            for each in positions:
                known.positions[each.consumer, each.topic, each.partition] = each
    except (IsologError, Refusal) as error:
        code = _position_code(error)
        codes |= {(each.topic, each.partition): code for each in positions}
    return committed(fields["topics"], codes)


def _check_owner(call: KafkaCall, group: str, owner: str | None) -> None:
    """Check that a user may store positions of a group, and that the owner, if any, owns them."""
    try:
        call.log._connection.call(CheckConsumer.of(consumer=group, instance=owner or "none"))
    except ConsumerFenced:
        if owner is not None:
            raise


def _position_code(error: Exception) -> KafkaCode:
    if isinstance(error, ProducerFenced):
        return KafkaCode.INVALID_PRODUCER_EPOCH
    if isinstance(error, TransactionAborted | InvalidTransaction | AbortableFailure):
        # Clients abort after this code too.
        return KafkaCode.ILLEGAL_GENERATION
    return group_code(error)


# -- writes ----------------------------------------------------------------------------------------


def stamp_in(call: KafkaCall, name: str, batch: Batch, rows: int) -> Stamp:
    """Return the stamp of a batch in the open transaction of its producer.

    Raises:
        AbortableFailure: No transaction is open.
        ProducerFenced: Another producer owns the transactional id.
    """
    known = call.transactions.of(name, batch.producer_id)
    with known.lock:
        branch = _present(call, known)
    last = (batch.base_sequence + rows - 1) % (SEQUENCE_MAX + 1)
    # With a new producer id of isolog, the epochs begin at 0 again.
    since = batch.producer_epoch if batch.producer_epoch <= branch.epoch else 0
    return Stamp(branch.producer_id, branch.epoch, last, branch.number, batch.base_sequence, since)


def _present(call: KafkaCall, known: KafkaTransaction) -> Branch:
    """Return the open transaction, which another gateway may have begun."""
    if known.branch is not None and known.is_own:
        return known.branch
    found = _described(call, known)
    if found.state != "open":
        raise AbortableFailure(f"the transaction is {found.state}")
    if known.branch is None or known.branch.number != found.number:
        # Only the owner may renew it.
        renew = RenewTransaction.of(**known.own, number=found.number)
        found = call.log._connection.call(renew)
        branch = Branch(
            transactional_id=known.transactional_id,
            number=found.number,
            producer_id=found.producer_id,
            epoch=found.epoch,
        )
        known.open(branch, is_own=False)
        return branch
    return known.branch


# -- operators -------------------------------------------------------------------------------------


def list_transactions(call: KafkaCall) -> Answer:
    """Return the fields of the answer with all transactional ids that the user may describe."""
    states, producers = call.fields["state_filters"], call.fields["producer_id_filters"]
    found = call.log._connection.call(ListTransactions()).transactions
    shown = [
        {
            "transactional_id": each.transactional_id,
            "producer_id": each.producer_id,
            "transaction_state": _STATES[each.state],
        }
        for each in found
        if not producers or each.producer_id in producers
    ]
    return {
        "unknown_state_filters": [each for each in states if each not in _STATES.values()],
        "transaction_states": [
            each for each in shown if not states or each["transaction_state"] in states
        ],
    }


def describe_transactions(call: KafkaCall) -> Answer:
    """Return the fields of the answer about transactional ids."""
    return {"transaction_states": [_shown(call, name) for name in call.fields["transactional_ids"]]}


def _shown(call: KafkaCall, name: str) -> Answer:
    try:
        found = call.log._connection.call(DescribeTransaction.of(transactional_id=name))
    except UnknownTransaction:
        code = KafkaCode.TRANSACTIONAL_ID_NOT_FOUND
        return {"transactional_id": name, "error_code": int(code)}
    except IsologError as error:
        return {"transactional_id": name, "error_code": int(transaction_code(error))}
    return {
        "transactional_id": name,
        "transaction_state": _STATES[found.state],
        "transaction_timeout_ms": found.timeout_ms,
        "transaction_start_time_ms": found.began_ms,
        "producer_id": found.producer_id,
        "producer_epoch": found.epoch,
        "topics": [
            {"topic": topic, "partitions": numbers}
            for topic, numbers in numbers_by_topic(
                (each.topic, each.partition) for each in found.partitions
            ).items()
        ],
    }
