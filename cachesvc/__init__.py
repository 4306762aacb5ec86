"""The manager: which page belongs to whom, and what runs next. numpy, no torch."""
