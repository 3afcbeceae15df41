"""The report: one self-contained page about one or more runs, and figures for papers.

source, subject, data   what a page is made from: run folders, and the models in them
table, chart, dots, curves, palette   what a page is made of
sections/   the page's sections, one file each
published   the papers' figures, to stand beside a run's own
page, figures   what is written: HTML, and PDF or SVG
"""

from dualscope.report.charts.figures import write_figures
from dualscope.report.page import write_report

__all__ = ["write_figures", "write_report"]
