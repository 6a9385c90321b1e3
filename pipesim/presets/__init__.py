"""Data files: models.json and clusters.json, each entry with the source of its numbers."""
