"""`python -m amago.cli` is `amago-run`."""

from amago.cli import main

main()
