"""`python -m stratalog` is the `stratalog` program."""

from stratalog.cli import main

main()
