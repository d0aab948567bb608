"""Output of records: console, CSV, Markdown, JUnit, HTML."""
