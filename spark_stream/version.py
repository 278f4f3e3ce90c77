"""The release of this code, as the installed distribution says it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("isolog")
except PackageNotFoundError:  # run from a checkout that was never installed
    VERSION = "0+checkout"
