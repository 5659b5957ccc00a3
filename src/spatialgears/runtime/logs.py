"""Log lines without control characters."""

from __future__ import annotations

import logging

from spatialgears.text import plain


class PlainFormatter(logging.Formatter):
    """Writes out control characters of names in a message, so that they do not steer a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        return plain(super().format(record))
