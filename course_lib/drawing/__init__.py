"""Pictures: of spans on a timeline, of curves, in SVG; and what every widget shares.

Read `picture`, `svg`, `timeline`; `explorer` with shell.js is a widget, in JupyterLab and on the website.
"""

from typing import TYPE_CHECKING

from course_lib.runtime.exports import exports

if TYPE_CHECKING:
    from course_lib.drawing.curves import draw_curves
    from course_lib.drawing.picture import Picture
    from course_lib.drawing.svg import Drawing, diagram
    from course_lib.drawing.timeline import draw_comparison, draw_messages, draw_timeline

__getattr__, __dir__ = exports(__name__)
