"""`python -m fractionate.cli` is `fractionate`."""

from fractionate.cli import main

if __name__ == "__main__":  # worker processes import this module again
    main()
