"""A timeout of a test in a call to the JVM does not disturb later tests of the session."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from types import FrameType

import pytest
from pyspark.sql import SparkSession


def time_out(number: int, frame: FrameType | None) -> None:
    pytest.fail("a timeout")


@pytest.fixture
def call_without_an_answer(spark: SparkSession, tmp_path: Path) -> None:
    """A call that waits for the text of a pipe is interrupted, and answered afterwards."""
    pipe, main, interrupted = tmp_path / "pipe", threading.get_ident(), threading.Event()
    os.mkfifo(pipe)
    jvm = spark._jvm
    read, path = jvm.java.nio.file.Files.readString, jvm.java.io.File(str(pipe)).toPath()

    def interrupt() -> None:
        with pipe.open("w") as out:  # waits until the call has opened the pipe
            signal.pthread_kill(main, signal.SIGUSR1)
            interrupted.wait(60)
            out.write("an answer")

    handler = signal.signal(signal.SIGUSR1, time_out)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(pytest.fail.Exception, match="a timeout"):
            read(path)
    finally:
        signal.signal(signal.SIGUSR1, handler)
        interrupted.set()
        thread.join()


@pytest.mark.usefixtures("call_without_an_answer")
def test_next_call_gets_its_own_answer(spark: SparkSession) -> None:
    assert spark.range(3).count() == 3
