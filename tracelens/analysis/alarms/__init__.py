"""Alarms of the field: what the data of a question say is wrong with them. `collect` asks them all."""
