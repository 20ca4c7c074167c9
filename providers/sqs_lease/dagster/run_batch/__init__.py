"""One batch over the run worker and the processes of its steps: its folder, its rules, and its hand-over."""
