"""Stowage within other libraries' training loops."""
