"""The checks of flows, the flows that every deployment agrees on, drawn flows, and the reference interpreter."""
