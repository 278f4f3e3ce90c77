"""``python -m spark_stream.cli``, which is the same as ``isolog``."""

from __future__ import annotations

from spark_stream.cli import main

if __name__ == "__main__":
    main()
