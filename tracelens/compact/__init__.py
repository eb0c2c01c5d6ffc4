"""Fewer and larger files, and old days as sums: what keeps a lake of many logs quick."""
