"""`python -m tacita`: the same as the command `tacita`."""

from tacita.cli import main

if __name__ == "__main__":
    main()
