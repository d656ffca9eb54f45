"""The solver away from drafting."""
