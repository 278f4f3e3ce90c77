"""A broker's garbage collector looks at most objects once."""

from __future__ import annotations

import subprocess
import sys
import textwrap

_BEGIN = """
import gc, weakref
from spark_stream.broker.garbage import FROZEN_LEAST, freeze_survivors

class Held:
    pass

def cycle():
    first, second = Held(), Held()
    first.other, second.other = second, first
    return first

freeze_survivors()
kept = [[] for _ in range(FROZEN_LEAST)]
one, ring = Held(), cycle()
seen, seen_ring = weakref.ref(one), weakref.ref(ring)
gc.collect()
"""


def in_another_process(code: str) -> None:
    """Run the code after the beginning. The collector of this process has other objects."""
    program = _BEGIN + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_survivors_of_a_full_collection_are_not_examined_again() -> None:
    in_another_process("""
        assert gc.get_freeze_count() >= FROZEN_LEAST
        assert len(gc.get_objects()) < FROZEN_LEAST
    """)


def test_an_object_without_references_is_freed_immediately() -> None:
    in_another_process("""
        del one
        assert seen() is None
    """)


def test_a_frozen_cycle_is_freed_after_the_objects_have_doubled() -> None:
    in_another_process("""
        del ring
        gc.collect()
        assert seen_ring() is not None
        kept += [[] for _ in range(gc.get_freeze_count())]
        gc.collect()
        assert seen_ring() is not None
        gc.collect()
        assert seen_ring() is None
        frozen = gc.get_freeze_count()
        assert frozen > len(kept)
        gc.collect()
        assert gc.get_freeze_count() == frozen
    """)


def test_few_survivors_are_not_frozen() -> None:
    in_another_process("""
        frozen = gc.get_freeze_count()
        kept += [[] for _ in range(FROZEN_LEAST // 2)]
        gc.collect()
        assert gc.get_freeze_count() == frozen
    """)
