"""``python -m spark_stream.broker --dir DIR``: the process of a broker in the background.

On failure the error goes to standard output as one JSON line, for the process that started it.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from spark_stream.broker.config import BrokerConfig
from spark_stream.broker.process import serve
from spark_stream.broker.serving.memory import block_pandas, limit_memory
from spark_stream.errors import IsologError


def main() -> int:
    """Run a broker: exit code 0 after a clean stop, 1 if it could not start."""
    parser = argparse.ArgumentParser(prog="isolog broker")
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--listen")
    parser.add_argument("--peer-listen")
    parser.add_argument("--flight-listen")
    parser.add_argument("--metrics-listen")
    parser.add_argument("--kafka-listen")
    parser.add_argument("--advertise")
    parser.add_argument("--metadata")
    parser.add_argument("--id")
    parser.add_argument("--rack")
    parser.add_argument("--conf", type=Path)
    parser.add_argument("--idle-seconds", type=float)
    given = parser.parse_args()
    try:
        config = BrokerConfig.load(
            given.conf,
            dir=given.dir,
            id=given.id,
            rack=given.rack,
            metadata=given.metadata,
            listen=given.listen,
            peer_listen=given.peer_listen,
            flight_listen=given.flight_listen,
            metrics_listen=given.metrics_listen,
            kafka_listen=given.kafka_listen,
            advertise=given.advertise,
            idle_seconds=given.idle_seconds,
        )
        limit_memory(config.memory_bytes)
        block_pandas()
        serve(config)
    except IsologError as error:
        print(json.dumps({"error": error.to_wire()}), flush=True)
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
