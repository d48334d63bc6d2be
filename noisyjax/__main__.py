"""`python -m noisyjax`."""

from noisyjax.cli import main

if __name__ == "__main__":
    main()
