"""Verbs of the command line that need Python: those of cli/ are a program that knows no torch."""
