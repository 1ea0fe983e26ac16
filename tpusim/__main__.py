"""`python -m tpusim` is the command `tpusim`."""

from tpusim.cli import main

if __name__ == "__main__":
    main()
