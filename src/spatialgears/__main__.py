"""``python -m spatialgears`` is ``gears``."""

from spatialgears.cli import main

if __name__ == "__main__":
    main()
