"""The report as one self-contained page.

Each module makes the content of a section as plain data; `page` puts them into the template.
"""

from tpusim.report.html.page import report_page as report_page
