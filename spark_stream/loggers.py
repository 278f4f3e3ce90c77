"""Loggers by the public name of the package."""

from __future__ import annotations

import logging


def logger_of(module: str) -> logging.Logger:
    """Return the logger of a module of ``spark_stream``, such as ``isolog.client.log``."""
    return logging.getLogger("isolog" + module.removeprefix("spark_stream"))
