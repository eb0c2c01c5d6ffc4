"""The road from a source to the lake: sources, then engines, then the lake's writer."""
