"""`python -m flamecore` is `flamestream`."""

from flamecore.cli import main

main()
