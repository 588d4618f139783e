"""Log lines on stderr, text or JSON. Prompts and replies are never logged."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def _one_line(text: str) -> str:
    """Whatever a client's words hold, they begin no line and move no cursor."""
    return text if text.isprintable() else "".join(item if item.isprintable() else repr(item)[1:-1] for item in text)


class _Text(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = "" if record.levelno == logging.INFO else f" {record.levelname}"
        fields = "".join(f" {name}={value}" for name, value in getattr(record, "fields", {}).items())
        line = _one_line(f"{stamp} {self._process}{level}: {record.getMessage()}{fields}")
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _Json(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": record.created,
            "level": record.levelname.lower(),
            "process": self._process,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def set_up(process: str, level: str, form: str) -> None:
    """Sends every logger of this process to stderr. `process` names it in each line; `form` is `text` or `json`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json(process) if form == "json" else _Text(process))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(LEVELS[level])


def set_level(level: str) -> None:
    """The least severe line that this process logs from now on."""
    logging.getLogger().setLevel(LEVELS[level])


def event(logger: logging.Logger, message: str, **fields: object) -> None:
    """An info line with fields, such as req_id."""
    logger.info(message, extra={"fields": fields})
