"""Pure calls: names of packages whose calls act are whole words."""

import pytest

from marin_dag.code.pure import is_pure


@pytest.mark.parametrize("name", ["html.write", "json.dump", "numpy.seterr", "time.sleep", "unknown_package.make"])
def test_a_call_that_acts_or_of_an_unknown_package_is_not_pure(name: str) -> None:
    assert not is_pure(name)


@pytest.mark.parametrize("name", ["math.e", "json.dumps", "operator.itemgetter", "re.compile"])
def test_a_call_that_only_returns_is_pure(name: str) -> None:
    assert is_pure(name)
