"""Code that runs inside an engine. Imports nothing of the rest."""
