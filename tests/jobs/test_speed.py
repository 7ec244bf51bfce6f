"""jobs/bench.py: which sections there are. What they print is no test's business: machines are noisy."""

import importlib
import inspect

from jobs.bench import sections


def test_a_section_is_a_module_with_a_function_rows_of_its_own() -> None:
    assert sections() == ["codecs", "load", "measure", "online", "render", "start", "text"]
    for name in sections():
        rows = importlib.import_module(f"jobs.speed.{name}").rows
        assert rows.__module__ == f"jobs.speed.{name}"  # and not one that it imports
        assert list(inspect.signature(rows).parameters) == ["options"]
