"""Planned calls: the plan of a recording, its rehearsal, its execution."""
