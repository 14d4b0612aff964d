"""Benchmarks, in the rooms of what they measure: order, layout, budget, eager, step, shard, strangers. ``./dev bench NAME``
runs bench/ROOM/NAME.py; rivals written in C++ are in bench/rivals. gpu.py stands alone: it runs where nothing is installed."""
