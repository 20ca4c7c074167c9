"""One batch over the run worker and the processes of its steps: its folder, its leases, its owner."""
