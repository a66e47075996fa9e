"""A Flower app with privacy: digits over several clients."""
