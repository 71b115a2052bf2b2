"""What a message costs, and an all-reduce made of messages (lesson 00).

Read link; explore_all_reduce is the lesson's widget.
"""

from typing import TYPE_CHECKING

from course_lib.runtime.exports import exports

if TYPE_CHECKING:
    from course_lib.messages.draw_link import draw_link
    from course_lib.messages.explore_all_reduce import explore_all_reduce
    from course_lib.messages.link import Line, Link, fit_line, measure_link

__getattr__, __dir__ = exports(__name__)
