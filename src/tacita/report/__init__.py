"""Pictures and pages of guarantees. Pages and pictures need the `report` extra; the data and the text do not."""

from tacita.report.finding import Bound as Bound
from tacita.report.finding import Chart as Chart
from tacita.report.finding import Finding as Finding
from tacita.report.finding import Series as Series
from tacita.report.label import Check as Check
from tacita.report.label import GroupRow as GroupRow
from tacita.report.label import Label as Label
from tacita.report.label import Readings as Readings
from tacita.report.page import label_html as label_html
from tacita.report.text import label_text as label_text
