"""The cluster: a job on several processes: membership, control plane, recovery, reconfiguration, lease, client."""
