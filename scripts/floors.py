"""Print the oldest release of each requirement that setup.cfg permits, as constraints for pip.

They are those of the base and of the extras for users. PySpark has a target for its releases.
"""

from __future__ import annotations

import configparser
import re
from collections.abc import Iterator
from pathlib import Path

EXTRAS = ("spark", "certs", "jwt", "console", "metrics")
APART = {"isolog", "pyspark"}


def floors() -> Iterator[str]:
    """Yield a constraint for each requirement, once."""
    settings = configparser.ConfigParser()
    settings.read(Path(__file__).resolve().parents[1] / "setup.cfg")
    extras = settings["options.extras_require"]
    lists = (settings["options"]["install_requires"], *(extras[each] for each in EXTRAS))
    seen: set[str] = set()
    for line in "\n".join(lists).splitlines():
        found = re.match(r"([\w-]+)(?:\[[\w,]+\])?(?:>=([\w.]+))?", line)
        if line.startswith("#") or found is None or found[1] in APART | seen:
            continue
        if found[2] is None:
            raise SystemExit(f"setup.cfg: {line} has no minimum. Add it: {found[1]}>=RELEASE")
        seen.add(found[1])
        yield f"{found[1]}=={found[2]}"


if __name__ == "__main__":
    print("\n".join(floors()))
