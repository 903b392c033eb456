"""`python -m hcomp` is the command `hcomp`."""

import sys

from hcomp.cli import main

if __name__ == "__main__":
    sys.exit(main())
