"""Teaching a class: live answers and their record, slides, a timetable and teaching notes."""
