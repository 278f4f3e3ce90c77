"""The Flight facade of a broker."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

TRY = """
import json, sys
from pathlib import Path
from spark_stream.broker.config import BrokerConfig
from spark_stream.broker.process import Broker

directory, flight_listen = sys.argv[1:]
config = BrokerConfig(dir=Path(directory), listen="127.0.0.1:0", flight_listen=flight_listen)
broker = Broker(config)
print(json.dumps("pyarrow._flight" in sys.modules))
broker.stop()
"""


@pytest.mark.parametrize("listen", ["", "127.0.0.1:0"], ids=["not configured", "configured"])
def test_broker_loads_flight_only_if_it_is_configured(listen: str, tmp_path: Path):
    found = subprocess.run(
        [sys.executable, "-c", TRY, str(tmp_path / "log"), listen],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert json.loads(found.stdout) is bool(listen)
