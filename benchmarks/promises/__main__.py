"""`python -m benchmarks.promises`."""

import sys

from benchmarks.promises.run import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
