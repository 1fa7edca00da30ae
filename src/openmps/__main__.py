"""``python -m openmps`` is the command line."""

import sys

from openmps.cli import main

if __name__ == "__main__":
    sys.exit(main())
