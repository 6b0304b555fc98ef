"""Settings that `conftest.py` makes for every test."""

import warnings

import pytest


@pytest.mark.parametrize("kind", [UserWarning, DeprecationWarning, ResourceWarning])
def test_warnings_are_errors(kind):
    with pytest.raises(kind, match="this one"):
        warnings.warn("this one", kind, stacklevel=1)
