"""Tables that several workers write."""
