"""Certificates for a test cluster: an authority, and a certificate for each role."""
