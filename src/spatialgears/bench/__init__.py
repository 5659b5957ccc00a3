"""The benchmark: experiments that compare methods, parts of the method, and versions of the code.

``gears bench`` is its command. ``request`` has its options and says what an experiment is; ``experiments`` lists them by
name. Most are ``comparisons``: ``sets`` and ``protocols`` make tasks, ``methods`` lists what can place cells, ``harness``
runs every method on every task under limits, and ``tables`` and ``figures`` show the rows that ``store`` keeps. The
others fit one model and vary a part (``fitted``), or measure time and memory (``scaling``, ``speed``).
"""
