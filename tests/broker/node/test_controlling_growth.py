"""The work for a change depends on the change, and not on the number of partitions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest

from tests.broker.control_plane import ControlPlane, Requests

SIZES = (1_000, 10_000)


@pytest.fixture(scope="module")
def planes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ControlPlane]]:
    """Ten brokers with each of the numbers of partitions."""
    found = []
    for partitions in SIZES:
        plane = ControlPlane(tmp_path_factory.mktemp(str(partitions)), brokers=10)
        for number in range(partitions // 500):
            plane.create(f"t{number}", 500)
        plane.rounds(2)
        found.append(plane)
    yield found
    for each in found:
        each.close()


def calls(work: Callable[[], object]) -> int:
    """The number of Python calls that the work makes on this thread."""
    made = 0

    def count(*_: object) -> None:
        nonlocal made
        made += 1

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return made


def requests(plane: ControlPlane, work: Callable[[], object]) -> Requests:
    before = plane.requests()
    work()
    return plane.requests() - before


def change(plane: ControlPlane) -> None:
    plane.change("t0")
    plane.rounds()


def create(plane: ControlPlane) -> None:
    plane.create("new", 10)
    plane.rounds()


@pytest.mark.rule("a controller's round examines changed partitions only", "broker/node/pending.py")
@pytest.mark.parametrize("work", [ControlPlane.rounds, change])
def test_calls_of_a_change_are_independent_of_partitions(planes, work):
    for each in planes:
        work(each)
    few, many = (calls(lambda each=each: work(each)) for each in planes)
    assert many < few * 1.1


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (ControlPlane.rounds, Requests(0, 0, 0)),
        (change, Requests(0, 1, 1)),
        (create, Requests(4, 4, 13)),
    ],
)
def test_requests_are_independent_of_partitions(planes, work, expected):
    assert [requests(each, lambda each=each: work(each)) for each in planes] == [expected] * 2


def test_a_brokers_death_is_one_request_for_its_partitions(planes):
    for each, partitions in zip(planes, SIZES, strict=True):
        found = requests(each, lambda each=each: fail(each))
        assert found[:2] == (1, 1)
        assert found.records == pytest.approx(partitions / 10, abs=10)


def fail(plane: ControlPlane) -> None:
    plane.kill(plane.brokers[0])
    plane.rounds()
