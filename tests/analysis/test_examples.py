"""The examples of the docs run, and every public function keeps to the house's rules."""

from __future__ import annotations

import doctest
import importlib
import inspect
from types import FunctionType

import pytest

import spatialgears as sg

FUNCTIONS = [name for name in sg.tl.__all__ if isinstance(getattr(sg.tl, name), FunctionType)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_example_runs(name):
    function = getattr(sg.tl, name)
    module = importlib.import_module(function.__module__)
    (example,) = doctest.DocTestFinder(recurse=False).find(function, name, module=module, globs={})
    assert example.examples
    runner = doctest.DocTestRunner()
    runner.run(example)
    assert runner.failures == 0


@pytest.mark.parametrize("name", FUNCTIONS)
def test_options_are_given_by_keyword(name):
    parameters = inspect.signature(getattr(sg.tl, name)).parameters.values()
    assert sum(p.kind is not p.KEYWORD_ONLY for p in parameters) <= 3
