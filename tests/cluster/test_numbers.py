"""Numbers that nobody else gets: on every store, from many sides at once."""

from __future__ import annotations

import threading

from spark_stream.cluster.numbers import Numbers


def test_no_number_is_given_out_twice(another):
    makers = [Numbers(another(), "numbers/x", block=7) for _ in range(3)]
    taken: list[int] = []

    def take(maker: Numbers) -> None:
        taken.extend(maker.take() for _ in range(50))

    threads = [threading.Thread(target=take, args=(maker,)) for maker in makers for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(taken)) == len(taken) == 300


def test_numbers_go_on_after_a_restart(another):
    first = [Numbers(another(), "n").take() for _ in range(3)]
    assert first == sorted(set(first))
