"""The work of `cold.py`."""
