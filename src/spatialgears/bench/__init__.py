"""The benchmark: protocols x methods x seeds, each run in a process of its own, one JSON row per run.

``gears bench`` is its command. ``protocols`` makes tasks of data, ``methods`` names what can place cells,
``harness`` runs one on the other under limits of time and memory and keeps the rows, ``tables`` and
``figures`` show them, and ``experiments`` gives the paper's experiments by name.
"""
