"""What an instructor has in front of a class."""
