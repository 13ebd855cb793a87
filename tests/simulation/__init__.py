"""A seeded simulation of whole installations: see README.md."""
