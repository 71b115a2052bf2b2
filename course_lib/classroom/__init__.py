"""In front of a class: what it believes, live and kept in a record; slides, a timetable, what to say."""
