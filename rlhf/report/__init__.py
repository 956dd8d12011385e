"""A run, or several beside each other, as one HTML page that opens without a network.

``rlhf.report.page.write_report`` writes it; nothing is imported here, so that ``--help`` answers at once.
"""
