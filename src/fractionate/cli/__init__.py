"""The command line: every verb parses, calls the library, and prints."""

from fractionate.cli.app import app, main

__all__ = ["app", "main"]
