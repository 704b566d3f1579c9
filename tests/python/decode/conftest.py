import pytest


@pytest.fixture(autouse=True)
def small_models(one_thread):
    """Models this small lose more to a second thread than they gain."""
