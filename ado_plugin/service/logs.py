"""Logs of a server: one JSON object per line, control characters replaced, nothing secret.

Tokens never reach a log because no object that holds one is ever logged; text from clients is shortened and cleaned.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from fastomp_nvm.cli.output import clean

__all__ = ["JsonLines", "log_to_stderr"]

_STANDARD = frozenset(logging.LogRecord("", 0, "", 0, "", None, None).__dict__) | {"message", "asctime", "taskName"}
_LONGEST = 500


class JsonLines(logging.Formatter):
    """Formats a record as one line of JSON: time, level, logger, event, and the fields of ``extra``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": clean(record.getMessage(), _LONGEST),
        }
        for name, value in record.__dict__.items():
            if name not in _STANDARD:
                line[name] = value if isinstance(value, (int, float, bool, type(None))) else clean(str(value), _LONGEST)
        if record.exc_info:
            line["traceback"] = [clean(text, _LONGEST) for text in self.formatException(record.exc_info).splitlines()]
        return json.dumps(line)


def log_to_stderr(level: int = logging.INFO) -> None:
    """Send the logs of this project's packages to stderr, as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for package in ("ado_plugin", "fastomp_nvm", "storage_backends"):
        logger = logging.getLogger(package)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
