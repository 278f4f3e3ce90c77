"""``python -m spark_stream.datasource.options FILE``: writes the table of options into a page."""

from __future__ import annotations

import sys
from pathlib import Path

from spark_stream.datasource.options.page import write_table

if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(name, "is changed" if write_table(Path(name)) else "is as it should be")
