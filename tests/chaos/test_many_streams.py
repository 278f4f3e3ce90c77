"""A client with many streams, in a separate process, survives the deaths of its brokers."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from tests.brokers import brokers_on
from tests.conftest import ROOT
from tests.support import NUMBERS, eventually

pytestmark = [pytest.mark.slow, pytest.mark.full]

ROUNDS = 6  # each broker is killed twice and stopped once
TOPICS = 6  # of each broker


def test_process_with_many_streams_survives_killed_brokers(tmp_path):
    """No abort, no loss and no duplicate, in any state of the threads at the death of a broker."""
    led = [[f"{name}{number}" for number in range(TOPICS)] for name in ("one", "two")]
    with brokers_on(tmp_path) as brokers:
        for broker, topics in zip(brokers, led, strict=True):
            with broker.connect() as log:
                for topic in topics:
                    log.create_topic(topic, schema=NUMBERS, assignment=[[broker.directory.name]])
        addresses = ",".join(each.address for each in brokers)
        with subprocess.Popen(
            [sys.executable, "-m", "tests.client.many_streams", addresses]
            + [topic for topics in led for topic in topics],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        ) as client:
            try:
                with brokers[0].connect() as log:
                    for topic in (topic for topics in led for topic in topics):
                        eventually(lambda topic=topic: log.read(topic).num_rows)
                for number in range(ROUNDS):
                    broker = brokers[number % 2]
                    if number % 3 == 2:
                        broker.pause()
                        time.sleep(1)
                        broker.resume()
                    else:
                        broker.kill()
                        broker.restart()
                    time.sleep(0.3)
                output, errors = client.communicate(timeout=150)
            finally:
                client.kill()
        assert client.returncode == 0, errors[-4000:]
        assert int(output) > 100, (output, errors)
        assert "Traceback" not in errors, errors[-4000:]
