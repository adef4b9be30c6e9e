"""`python -m kagzi.cli`: the command line without its entry point."""

from kagzi.cli import main

main()
