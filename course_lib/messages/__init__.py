"""What a message costs, and an all-reduce made of messages (lesson 00).

Read `link`; then `all_reduce_widget`, three all-reduces as rounds of messages, and the widget that steps through them.
"""

from typing import TYPE_CHECKING

from course_lib.runtime.exports import exports

if TYPE_CHECKING:
    from course_lib.messages.all_reduce_widget import explore_all_reduce
    from course_lib.messages.link import Line, Link, fit_line, measure_link
    from course_lib.messages.link_picture import draw_link

__getattr__, __dir__ = exports(__name__)
