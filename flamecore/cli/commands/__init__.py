"""The commands of `flamestream`, a module each, imported when it is called."""
