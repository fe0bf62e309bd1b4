"""The checks of flows, the flows that every deployment agrees on, and the reference interpreter."""
