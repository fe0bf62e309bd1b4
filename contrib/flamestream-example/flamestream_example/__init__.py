"""A source and a sink for flamestream. Each module is a driver; entry points name them."""
