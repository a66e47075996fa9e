"""Charts and pages of guarantees. Pages and charts need the `report` extra; the data and the text do not."""

from tacita.label import Bound as Bound
from tacita.label import Chart as Chart
from tacita.label import Finding as Finding
from tacita.label import GroupRow as GroupRow
from tacita.label import Label as Label
from tacita.label import Readings as Readings
from tacita.label import Series as Series
from tacita.report.page import label_html as label_html
from tacita.report.text import label_text as label_text
