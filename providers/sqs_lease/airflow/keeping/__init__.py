"""The keeper's trigger: watches the work, and settles each message as it ends."""
