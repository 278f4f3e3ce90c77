"""Histories of runs as JSON lines, for a checker that shares no code with isolog (README.md)."""
