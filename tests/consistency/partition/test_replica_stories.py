"""Stories of replicas that diverged, fell behind or lost entries."""

from __future__ import annotations

import pytest

from spark_stream.consistency.ids import Generation
from tests.consistency.partition_model import Cluster
from tests.consistency.partition_parts import Process


def cluster(brokers: int = 3, least: int = 1) -> Cluster:
    """All replicas are in sync and have the same four entries."""
    made = Cluster(brokers, brokers, least, lambda options: options[0])
    for _ in range(4):
        made.append(made.running["0"], 2)
    made.heal()
    return made


def leader(of: Cluster) -> Process:
    return of.running[of.record.leader or "nobody"]


def contents(of: Cluster, broker: str) -> list[int]:
    return [entry.data_crc for entry in of.logs[broker].entries]


def fail_over(of: Cluster) -> None:
    """The leader dies, and another is elected."""
    dead = leader(of)
    of.kill(dead)
    del of.alive[dead.me.broker]
    of.elect()
    of.land(of.writes[-1], answered=True)
    for process in of.running.values():
        of.see(process)


def test_an_ex_leader_truncates_its_longer_uncommitted_tail():
    made = cluster()
    before = contents(made, "0")
    for _ in range(3):
        made.append(leader(made), 1)  # nobody gets these
    tail = contents(made, "0")[len(before) :]
    fail_over(made)
    made.append(leader(made), 1)
    made.heal()
    for broker in made.brokers:
        found = contents(made, broker)
        assert found[: len(before)] == before
        assert not set(tail) & set(found)
        assert len(found) == len(before) + 1


def test_a_wiped_follower_is_refilled():
    made = cluster()
    made.kill(made.running["2"])
    made.logs["2"].entries.clear()
    made.generations["2"] = Generation("2")
    made.heal()
    assert contents(made, "2") == contents(made, "0")
    assert made.record.member("2").generation == "2"


def test_a_follower_behind_the_logs_start_begins_at_the_start():
    made = cluster()
    made.kill(made.running["2"])
    del made.alive["2"]
    for process in made.running.values():
        made.see(process)
    made.land(made.writes[-1], answered=True)  # it left the ISR: appends continue without it
    for _ in range(4):
        made.append(leader(made), 1)
        for link in list(made.links.values()):
            made.run_down(link)
    for process in list(made.running.values()):
        made.choose = max
        made.evict(process)
    made.heal()
    assert made.logs["2"].start == leader(made).log.start
    assert made.logs["2"].end == leader(made).log.end


def test_a_follower_whose_retention_removed_all_entries_continues_at_its_end():
    """It is in sync, and would be elected: it does not begin again with less."""
    made = cluster()
    follower = made.running["1"]
    made.run_down(made.links["1"])
    made.choose = max
    made.evict(follower)
    made.connect(follower)
    made.deliver_up(made.links["1"])
    made.deliver_down(made.links["1"])
    assert (follower.log.start.entry, follower.log.end.entry) == (4, 4)
    made.check()
    fail_over(made)
    made.heal()


def test_an_in_sync_follower_keeps_its_log_if_its_leaders_retention_removed_all_entries():
    """A crash during a restart from an empty log would leave it in sync, and electable, with a part
    of it."""
    made = cluster()
    made.choose = max
    made.evict(leader(made))
    follower = made.running["1"]
    made.connect(follower)
    made.deliver_up(made.links["1"])
    made.deliver_down(made.links["1"])
    assert (follower.log.start.entry, follower.log.end.entry) == (0, 4)
    made.append(leader(made), 1)
    made.heal()
    assert contents(made, "1")[4:] == contents(made, "0")


def test_an_ex_leader_with_only_its_tail_begins_at_its_leaders_start():
    """It is not in sync: the entries that it evicted may have been lost and replaced by others."""
    made = cluster()
    dead = leader(made)
    made.choose = max
    made.evict(dead)
    made.append(dead, 1)  # nobody gets this
    fail_over(made)
    made.append(leader(made), 1)
    made.start(dead.me.broker)
    again = made.running[dead.me.broker]
    made.connect(again)
    made.run_down(made.links[dead.me.broker])
    assert (again.log.start.entry, again.log.end.entry) == (0, 5)
    made.heal()


def test_a_committed_record_outlives_the_deaths_of_leader_after_leader():
    made = cluster()
    for _ in range(2):
        before = dict(made.committed)
        fail_over(made)
        assert made.committed == before
        made.check()
    made.heal()
    assert len(made.committed) == 4


def test_high_watermark_stops_with_too_few_in_sync_replicas_until_they_return():
    made = cluster(brokers=2, least=2)
    made.kill(made.running["1"])
    del made.alive["1"]
    made.see(leader(made))
    made.land(made.writes[-1], answered=True)
    assert len(made.record.isr) == 1
    made.append(leader(made), 1)
    assert leader(made).core.bounds_state.high_watermark.entry == 4
    made.heal()
    assert leader(made).core.bounds_state.high_watermark.entry == 5


@pytest.mark.parametrize("power", [False, True], ids=["process", "power"])
def test_without_a_follower_synced_entries_are_committed_after_a_restart(power):
    made = cluster(brokers=1)
    made.logs["0"].forced = 4
    (made.lose_power if power else made.kill)(made.running["0"])
    made.heal()
    assert leader(made).core.bounds_state.high_watermark == made.logs["0"].end
    assert len(contents(made, "0")) == 4


def test_a_restarted_leader_without_its_tail_does_not_continue_to_lead():
    """Its lease has not expired: only its generation differs."""
    made = cluster()
    made.logs["0"].forced = 0
    made.lose_power(made.running["0"])  # all of its log is gone
    made.start("0")
    assert not made.running["0"].leads
    made.heal()
    assert made.record.leader != "0"
    assert len(contents(made, "0")) == 4
