"""Regular files, files of users and of caches, and values from untrusted JSON and YAML."""
