"""In front of a class, and between two classes: what an instructor needs beside the lessons."""
