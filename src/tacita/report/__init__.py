"""Pictures and pages of guarantees. Needs the `report` extra."""
