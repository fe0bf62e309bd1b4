"""The cluster: a job on several processes.

Membership, control plane, recovery, reconfiguration, lease, client.
"""
