"""The HTML page of a tuning."""
