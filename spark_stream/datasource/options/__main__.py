"""``python -m spark_stream.datasource.options FILE``: writes the tables of options into pages."""

from __future__ import annotations

import sys
from pathlib import Path

from spark_stream.datasource.options.page import write_tables

if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(name, "is changed" if write_tables(Path(name)) else "is as it should be")
