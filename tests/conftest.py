"""What all tests share: `--bless`, the gpu mark, and settings that make runs repeatable."""

import os

import hypothesis
import pytest

# Two test processes fill two cores; spinning thread pools beside them only take time away. Set
# before any test imports TVM, which reads it once.
os.environ.setdefault("TVM_NUM_THREADS", "1")

# No compile cache, as it cannot have a folder there: tests are about compiling.
os.environ["XDG_CACHE_HOME"] = os.devnull

# No deadline: a loaded machine is not a bug. The same examples every time in CI, so that a failure
# there is one of the change under test; elsewhere new ones, so that they are found some day.
hypothesis.settings.register_profile("hcomp", deadline=None, print_blob=True)
hypothesis.settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "hcomp")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--bless", action="store_true", help="rewrite the expected part of golden cases")


@pytest.fixture
def bless(request: pytest.FixtureRequest) -> bool:
    """Whether golden cases are to be rewritten instead of compared."""
    return bool(request.config.getoption("--bless"))


def _has_cuda() -> bool:
    import tvm

    return bool(tvm.cuda(0).exist)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not _has_cuda():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
