"""``python -m jdaso VERB``."""

import sys

from jdaso.cli import main

if __name__ == "__main__":
    sys.exit(main())
