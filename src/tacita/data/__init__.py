"""Built-in small data."""

from tacita.data.example import example_norms as example_norms
