"""A run, or several beside each other, as one HTML page that opens without a network."""

from rlhf.report.page import MissingPackage, write_report

__all__ = ["MissingPackage", "write_report"]
