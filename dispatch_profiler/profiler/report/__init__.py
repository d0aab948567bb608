"""Records as people and programs read them: console, CSV, Markdown, JUnit, HTML."""
