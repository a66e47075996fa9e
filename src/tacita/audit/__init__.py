"""Attacks on what a run claims: canaries, membership, inversion, and a leak test of the accountant."""
