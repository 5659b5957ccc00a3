"""Errors that say what was expected, what was found, and what to do next."""

from __future__ import annotations

from pathlib import Path

from spatialgears.text import plain


class GearsError(Exception):
    """Anything spatialgears refuses or cannot continue with; the command line prints it without a traceback.

    Control characters of names that a message quotes are written out, so that they do not steer a terminal.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(plain(message))


class InputError(GearsError, ValueError):
    """Data, a file or an option that cannot be used as it is.

    Parameters
    ----------
    problem
        What was expected and what was found.
    advice
        What the user can do about it.

    Examples
    --------
    >>> import spatialgears as sg
    >>> try:
    ...     sg.Config.preset("fast")
    ... except sg.InputError as error:
    ...     print(error)
    No preset is called 'fast'; there are quick, default, paper, paper-small.
      What to do: Choose one of these.
    """

    def __init__(self, problem: str, advice: str = "") -> None:
        self.problem, self.advice = plain(problem), plain(advice)
        super().__init__(f"{problem}\n  What to do: {advice}" if advice else problem)


class ConfigError(InputError):
    """A configuration with an unknown key or a value out of range."""


class TrainingError(GearsError, RuntimeError):
    """Training cannot continue, for example because a loss is no longer finite."""


class RunError(GearsError, RuntimeError):
    """A run folder or a saved file that is locked or damaged, or a process that ended early."""


def require_new(path: str | Path, *, overwrite: bool) -> None:
    """Refuse to write over a file, unless it is to be replaced."""
    if Path(path).expanduser().exists() and not overwrite:
        raise InputError(
            f"{path} is there already.", "Name another file, or say overwrite=True (--overwrite)."
        )
