"""Who is the controller: one at a time on record, and never nobody for long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_stream.cluster.brokers import Controller, ControllerSeat, successor
from spark_stream.consistency.ids import BrokerId

B1, B2 = BrokerId("b1"), BrokerId("b2")


def nobody_lives(broker: BrokerId, incarnation: str) -> bool:
    return False


def all_live(broker: BrokerId, incarnation: str) -> bool:
    return True


def test_the_first_who_asks_is_the_controller_until_its_lease_is_over(store):
    one, two = ControllerSeat(store, B1, "s1"), ControllerSeat(store, B2, "s1")
    first = one.take(all_live)
    assert first == Controller(B1, "s1", 0)
    assert two.take(all_live) is None
    assert one.take(nobody_lives) == first, "its own seat it just keeps"
    assert one.holds(first)
    assert not two.holds(first)
    second = two.take(nobody_lives)
    assert second == Controller(B2, "s1", 1)
    assert one.take(all_live) is None
    assert not one.holds(second)


def test_an_earlier_incarnation_holds_no_seat(store):
    """The broker lives, but not the process that was the controller."""
    ControllerSeat(store, B1, "s1").take(all_live)
    later = ControllerSeat(store, B1, "s2")
    lives = {(B1, "s2")}
    assert later.take(lambda *who: who in lives) == Controller(B1, "s2", 1)
    assert not ControllerSeat(store, B1, "s1").holds(Controller(B1, "s2", 1))


def test_of_two_who_try_at_once_one_is_the_controller(store, another):
    ControllerSeat(store, BrokerId("b0"), "s").take(all_live)
    two = ControllerSeat(another(), B2, "s")
    taken = []

    def while_the_other_is_quicker(broker: BrokerId, incarnation: str) -> bool:
        if not taken:
            taken.append(two.take(nobody_lives))
        return False

    assert ControllerSeat(store, B1, "s").take(while_the_other_is_quicker) is None
    assert taken == [Controller(B2, "s", 1)]


@pytest.mark.rule("who is the controller", "cluster/brokers.py")
@given(st.lists(st.tuples(st.sampled_from([B1, B2]), st.sampled_from("st"), st.booleans())))
def test_a_term_has_one_controller_and_terms_rise(attempts):
    held: Controller | None = None
    terms: dict[int, tuple[str, str]] = {}
    for broker, incarnation, holder_lives in attempts:
        following = successor(held, broker, incarnation, lambda *_, lives=holder_lives: lives)
        if following is not None:
            assert held is None or not holder_lives
            assert held is None or following.term == held.term + 1
            held = following
            assert terms.setdefault(held.term, (broker, incarnation)) == (broker, incarnation)
        assert held is not None
