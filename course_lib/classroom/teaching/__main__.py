"""Write the pages of docs/teaching: `make teaching`."""

from course_lib.classroom.teaching.pages import pages
from course_lib.course_files import course_folder

for name, text in pages().items():
    (course_folder() / "docs" / "teaching" / name).write_text(text, encoding="utf-8")
