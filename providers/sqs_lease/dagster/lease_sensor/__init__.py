"""A sensor that receives batches itself, and holds them while runs work on them: its host, and how it settles them."""
