"""Certificates for a test cluster: an authority of its own, and one certificate for each role of a job."""
