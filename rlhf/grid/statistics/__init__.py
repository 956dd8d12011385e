"""Tables of results in, tables of statistics out.

``results`` is a pandas DataFrame with one row per run: ``variant`` (text), ``seed`` (whole number), one column (text)
per axis, and one column of numbers per metric, NaN where a run has none. Nothing here depends on the order of its rows,
and every random number comes from a fixed seed, so equal tables give equal bytes.

========================================  ===========================================================================
:mod:`~rlhf.grid.statistics.table`        the checked table: variants by seeds
:mod:`~rlhf.grid.statistics.comparisons`  means with intervals, differences paired by seed, Holm's correction
:mod:`~rlhf.grid.statistics.curves`       means of curves over seeds
:mod:`~rlhf.grid.statistics.factorial`    main effects and interactions of crossed axes
:mod:`~rlhf.grid.statistics.robust`       IQM, performance profiles, probability of improvement
:mod:`~rlhf.grid.statistics.power`        how many seeds a claim needs, and what these seeds could show
:mod:`~rlhf.grid.statistics.words`        a result as a sentence
========================================  ===========================================================================

How often the intervals hold what they say is measured by ``benchmarks/calibration.py``.
"""
