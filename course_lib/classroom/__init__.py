"""In front of a class: what the learners believe, where they are and who is stuck, live and kept in a record."""
