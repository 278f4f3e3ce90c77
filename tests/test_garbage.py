"""The garbage collector looks at most objects once."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

_BEGIN = """
import gc, weakref
from spark_stream.garbage import LONG_S, Survivors

class Held:
    pass

def cycle():
    first, second = Held(), Held()
    first.other, second.other = second, first
    return first

takes_s = LONG_S
spent_s = 0.0

def now():
    global spent_s
    spent_s += takes_s
    return spent_s

kept = [[] for _ in range(20_000)]
one, ring = Held(), cycle()
seen, seen_ring = weakref.ref(one), weakref.ref(ring)
gc.callbacks.append(Survivors(now).on_collection)
"""


def in_another_process(code: str) -> None:
    """Run the code after the beginning. The collector of this process has other objects."""
    program = _BEGIN + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_survivors_of_a_long_collection_are_not_examined_again() -> None:
    in_another_process("""
        gc.collect()
        assert gc.get_freeze_count() >= len(kept)
        assert len(gc.get_objects()) < len(kept)
    """)


def test_survivors_of_a_short_collection_are_not_frozen() -> None:
    in_another_process("""
        takes_s = LONG_S / 2
        gc.collect()
        assert gc.get_freeze_count() == 0
    """)


def test_an_object_without_references_is_freed_immediately() -> None:
    in_another_process("""
        gc.collect()
        del one
        assert seen() is None
    """)


def test_a_frozen_cycle_is_freed_after_the_objects_have_doubled() -> None:
    in_another_process("""
        gc.collect()
        del ring
        for _ in range(5):
            gc.collect()
        assert seen_ring() is not None
        kept += [[] for _ in range(gc.get_freeze_count())]
        for _ in range(2):
            gc.collect()
        assert seen_ring() is None
        assert gc.get_freeze_count() > len(kept)
    """)


def test_the_limit_for_frozen_objects_falls_with_their_number() -> None:
    in_another_process("""
        gc.collect()
        before = gc.get_freeze_count()
        kept.clear()
        gc.collect()
        few = gc.get_freeze_count()
        assert few < before / 1.5
        del ring
        more = [[] for _ in range(few)]
        for _ in range(2):
            gc.collect()
        assert gc.get_freeze_count() < 2.5 * before
        assert seen_ring() is None
    """)


def test_a_broker_freezes_survivors() -> None:
    in_another_process("""
        from spark_stream.broker import process

        class Serving(Exception):
            pass

        def serving(config):
            raise Serving

        process.Broker = serving
        try:
            process.serve(process.BrokerConfig(dir="log", listen="127.0.0.1:0"))
        except Serving:
            pass
        assert sum(isinstance(each.__self__, Survivors) for each in gc.callbacks) == 2
    """)


@pytest.mark.parametrize("takes_s", ["LONG_S", "LONG_S / 50"])
def test_collections_disturb_no_other_thread(takes_s: str) -> None:
    """A tuple that another thread makes must have no second reference."""
    in_another_process(f"""
        takes_s = {takes_s}
        import threading, time
        failures, ends = [], time.monotonic() + 1

        def build():
            try:
                while time.monotonic() < ends:
                    tuple(each for each in range(50))
            except SystemError as error:
                failures.append(error)

        threads = [threading.Thread(target=build) for _ in range(3)]
        for each in threads:
            each.start()
        while time.monotonic() < ends:
            gc.collect()
        for each in threads:
            each.join()
        assert not failures, failures
    """)
