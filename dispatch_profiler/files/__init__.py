"""Files: regular, of users and of caches, and what is read from untrusted JSON and YAML."""
