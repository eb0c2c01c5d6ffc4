"""One self-contained HTML page: no network, every text of a user or a log escaped."""
