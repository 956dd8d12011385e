"""What a grid came to: a table of results, statistics of it, figures, and one page with all of them.

========================================  ===========================================================================
:mod:`~rlhf.grid.report.results`          cells → the table: a row per cell, a number per metric
:mod:`~rlhf.grid.report.analysis`         the table → means, differences, effects, and what they say in words
:mod:`~rlhf.grid.report.drawings`         what the figures show, whoever draws them
:mod:`~rlhf.grid.report.figures`          the figures as PNG and PDF
:mod:`~rlhf.grid.report.beside`           variants beside each other: settings, answers, oddities, cost
:mod:`~rlhf.grid.report.write`            all of it into the grid's folder
========================================  ===========================================================================
"""
