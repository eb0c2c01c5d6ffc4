"""Results as terminal tables, JSON, CSV and Markdown. Queries nothing."""
