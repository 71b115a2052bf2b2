"""The tools for people who write or adapt lessons: `python -m course_lib.authoring --help` lists them."""
