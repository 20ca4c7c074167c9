"""How a failing task tells the keeper at once, and which messages it failed."""
