"""The exercises of lesson 12, from the LSTM to a transformer."""
