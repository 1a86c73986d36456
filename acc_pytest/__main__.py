"""`python -m acc_pytest` is the command `acc`, where its script is not on the path."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
