"""One command of hcomp in this process."""

import pytest

from hcomp.cli import main


def run(
    capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0, fault: bool = False
) -> tuple[str, str]:
    """Run a command in this process, check its status and whose fault it is, and return what it printed."""
    capsys.readouterr()
    found = main([str(a) for a in arguments])
    shown = capsys.readouterr()
    assert found == status, shown
    assert "Traceback" not in shown.err
    assert ("a fault of hcomp" in shown.err) == fault
    return shown.out, shown.err
